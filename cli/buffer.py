"""`backstop buffer`: one cluster's buffer, explained to a sceptic in five lines and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.backtest import GpusPerNode, Target, named_series, terms_of, weeks_of
from cli.options import LOOK, AsJson, Cluster, examples, number
from models.errors import BadInput

if TYPE_CHECKING:
    from models.backtest import Explained


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "backstop buffer train-1 --health health.csv",
            "backstop buffer train-1 --health health.csv --target 0.99 --horizon 1",
            "backstop buffer train-1 --health health.csv.gz --png buffer.png",
        ),
        rich_help_panel=LOOK,
    )(buffer)


def buffer(
    cluster: Cluster,
    health: Annotated[
        str, typer.Option(metavar="FILE", help="Health history as CSV, gzipped or not (- is standard input).")
    ],
    target: Target = "0.999",
    horizon: Annotated[str, typer.Option(metavar="WEEKS", help="For how many weeks is promised.")] = "4",
    floor: Annotated[str, typer.Option(metavar="SHARE", help="The buffer where history is short or stale.")] = "0.15",
    gpus_per_node: GpusPerNode = "8",
    png: Annotated[str, typer.Option(metavar="FILE", help="Write the picture: healthy hardware and ceilings.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what can honestly be promised of a cluster for the coming weeks, and what it costs.

    Five lines: what its history shows, what must stay unpromised, at two targets, what it is made of, and what a
    smaller and a larger buffer would have broken and stranded on the same history. Nothing is changed.
    """
    weeks = weeks_of(horizon)
    if len(weeks) != 1:
        raise BadInput(f"--horizon takes one number of weeks here, not {horizon}")
    terms = terms_of(target, floor)
    from client.series import read_series
    from models.backtest import explained

    found = read_series(health, int(number("--gpus-per-node", gpus_per_node, 1, 1000)))
    (series,) = named_series(found, [cluster], health, "CLUSTER")
    _answer(explained(series, terms, weeks[0]), png=png, as_json=as_json)


def _answer(found: Explained, *, png: str, as_json: bool) -> None:
    from cli.answers import BufferAnswer
    from cli.buffer_view import parts
    from cli.output import show, show_json

    if png:
        from cli.backtest_page import picture

        picture(png, [found.series], found.promised)
    if as_json:
        show_json(BufferAnswer.of(found).as_json())
    else:
        show(*parts(found))
