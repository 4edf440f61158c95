"""`backstop simulate-health`: write a made-up health history, to try policies on events that have not happened yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from cli.lazy import command
from cli.options import LOOK, number, opt, settings_given
from models.errors import BadInput
from models.texts import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from models.buffers.hourly_health import Series

_MOST_ROWS = 20_000_000


@command(
    LOOK,
    "backstop simulate-health --seed 7 > health.csv",
    "backstop simulate-health --clusters 20 --set nodes=256 --set weeks=26 --out health.csv",
)
def simulate_health(
    seed: Annotated[str, opt("NUMBER", "The same seed makes the same history.")] = "1",
    clusters: Annotated[str, opt("COUNT", "How many clusters, each with its own random numbers.")] = "1",
    settings: Annotated[
        list[str] | None, opt("KEY=VALUE", "A setting of the simulation (docs/buffers.md). Repeatable.", "--set")
    ] = None,
    out: Annotated[str, opt("FILE", "The CSV to write (-: stdout).")] = "-",
) -> None:
    """Write a made-up health history: failures, short and long repairs, failures in bursts and by rack,
    and nodes that fail again and again.

    The CSV has hourly node counts, in the columns that `backstop backtest` reads.
    """
    from pydantic import ValidationError

    from cli.output import write
    from client.inputs.sentences import first_problem
    from models.buffers.health_generator import Recipe, simulate_health

    many, dice = int(number("--clusters", clusters, 1, 10_000)), int(number("--seed", seed, 0, 2**31))
    values = settings_given("--set", settings or ())
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise BadInput(f"--set {first_problem(error, values).text}") from None
    if many * recipe.weeks * 168 > _MOST_ROWS:
        raise BadInput(
            f"--clusters {many} with {count_text(recipe.weeks, 'week')} each need more than {_MOST_ROWS:,} rows: "
            "give fewer clusters or weeks"
        )
    names = [recipe.cluster if many == 1 else f"{recipe.cluster}-{n + 1}" for n in range(many)]
    histories = (simulate_health(recipe.model_copy(update={"cluster": name}), dice + n) for n, name in enumerate(names))
    write(out, "--out", "".join(_rows(histories)))


def _rows(histories: Iterator[Series]) -> Iterator[str]:
    first = datetime(2025, 1, 6, tzinfo=UTC)  # a Monday; only the hours count
    yield "cluster,hour,ts,total_nodes,healthy_nodes_min,healthy_nodes_mean\n"
    for series in histories:
        total = int(series.total[0])
        for hour, (worst, mean) in enumerate(zip(series.worst.tolist(), series.mean.tolist(), strict=True)):
            at = first + timedelta(hours=hour)
            yield f"{series.cluster},{hour},{at:%Y-%m-%d %H:%M:%S},{total},{int(worst)},{mean:.4f}\n"
