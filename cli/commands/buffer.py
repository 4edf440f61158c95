"""`backstop buffer`: one cluster's buffer, explained to a sceptic in five lines and a picture."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from cli.commands.backtest import GpusPerNode, named_series, node_of, terms_of, weeks_of
from cli.lazy import command
from cli.list_options import tell
from cli.options import LOOK, Actor, AsJson, Cluster, actor_of, opt
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.buffers.backtest import Explained
    from models.buffers.health_hours import HealthHours
    from models.buffers.hourly_health import Series
    from models.cluster.derived_buffer import HealthTerms


@command(LOOK, "backstop buffer train-1", "backstop buffer train-1 --target 0.99 --horizon 1 --png buffer.png")
def buffer(
    cluster: Cluster,
    health: Annotated[
        str, opt("FILE", "Health history as CSV, gzipped or not (-: stdin). Default: the ledger's.")
    ] = "",
    target: Annotated[
        str,
        opt(
            "SHARE",
            "The share of hours in which all promised GPUs must be healthy.",
            show_default="the cluster's policy, else 0.999",
        ),
    ] = "",
    horizon: Annotated[
        str, opt("WEEKS", "How many weeks a promise lasts.", show_default="the cluster's policy, else 4")
    ] = "",
    floor: Annotated[
        str,
        opt(
            "SHARE",
            "The buffer where the history is too short or too old.",
            show_default="the cluster's policy, else 0.15",
        ),
    ] = "",
    gpus_per_node: GpusPerNode = "",
    png: Annotated[str, opt("FILE", "Write a PNG picture of healthy hardware and ceilings.")] = "",
    export: Annotated[
        str,
        opt(
            "FILE",
            "Write the ledger's hourly health history as the CSV that `backstop backtest` reads (-: stdout; gzipped "
            "if the name ends in .gz).",
        ),
    ] = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show how much of a cluster can be promised for the coming weeks, and what that costs.

    It shows how many GPUs must stay unpromised so that the promised ones are healthy in the target share of hours
    (`--target`), and why. It also shows how often other buffers would have failed, and how many healthy GPUs they would
    have left unused. Changes nothing.
    """
    if export and health:
        raise BadInput("--export writes the ledger's history, but --health names another history: give one of them")
    if export == "-" and as_json:
        raise BadInput("--export - and --json both write to standard output: give one of them")
    if gpus_per_node and not health:
        raise BadInput("--gpus-per-node is only for --health: without --health, the ledger gives the GPUs per node")
    asked = _Asked(target, horizon, floor)
    if health:
        from client.inputs.health_series import read_series

        (series,) = named_series(read_series(health, node_of(gpus_per_node)), [cluster], health, "CLUSTER")
        _answer(series, asked.over(None), png=png, as_json=as_json)
        return
    history = _from_ledger(cluster, actor_of(actor))
    if export:
        _export(export, history)
        if export == "-":
            return
    _answer(history.series, asked.over(history.terms), history, png=png, as_json=as_json)


class _Asked:
    """The given terms of a buffer. Errors: BadInput naming the option and the value."""

    def __init__(self, target: str, horizon: str, floor: str) -> None:
        weeks = weeks_of(horizon) if horizon else ()
        if len(weeks) > 1:
            raise BadInput(f"--horizon takes one number of weeks here, not {horizon}")
        self._target, self._floor, self._weeks = target, floor, weeks
        terms_of(target, floor)

    def over(self, terms: HealthTerms | None) -> HealthTerms:
        own = terms_of(self._target, self._floor, terms)
        return own.model_copy(update={"horizon": timedelta(weeks=self._weeks[0])}) if self._weeks else own


def _from_ledger(cluster: str, actor: str) -> HealthHours:
    from cli.session import ask

    async def question(door: Backstop) -> HealthHours:
        from models.questions import YearOfHealth

        return await door.ask(YearOfHealth(cluster=cluster))

    history = ask(actor, question)
    if not history.total:
        raise BadInput(f"the ledger has no health history of {cluster}: import samples, or name a file (--health)")
    return history


def _export(file: str, history: HealthHours) -> None:
    from cli.output import write
    from views.health_history_csv import as_csv

    write(file, "--export", as_csv(history.series))


def _answer(series: Series, terms: HealthTerms, ledger: HealthHours | None = None, *, png: str, as_json: bool) -> None:
    from cli.json_answers import BufferAnswer
    from models.buffers.backtest import Today, explain_buffer
    from views.buffer import parts

    today = None
    if ledger is not None and ledger.healthy_gpus is not None:
        today = Today(ledger.healthy_gpus, ledger.spare_gpus, ledger.health_at)
    answer: Explained = explain_buffer(series, terms, (ledger and ledger.total_gpus) or None, today)
    if png:
        from cli.pages.backtest import picture

        picture(png, [answer.series], answer.promised)
    tell(BufferAnswer.of(answer), lambda: parts(answer), as_json=as_json)
