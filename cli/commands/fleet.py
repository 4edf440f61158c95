"""`backstop fleet`: the group, and the ledger's clusters onto the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cli.commands import fleet_import, fleet_rollout
from cli.options import SET_UP, Actor, AsJson, ClusterOrAll, examples, who
from cli.session import ask
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.cluster.fleet_file import ClusterSpec


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Import the fleet, show it, and say how its rollout goes on.")
    fleet_import.add_to(group)
    group.command("show", epilog=examples("backstop fleet show", "backstop fleet show h100-worked --json"))(show_)
    fleet_rollout.add_to(group)
    app.add_typer(group, name="fleet", rich_help_panel=SET_UP)


def show_(
    cluster: ClusterOrAll = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show the clusters of the ledger with present quotas and latest health."""
    from cli.answers import ClusterAnswer, ClustersAnswer
    from cli.output import show, show_json
    from cli.views.fleet import cluster_parts, fleet_parts

    async def question(door: Backstop) -> list[tuple[ClusterSpec, str | None]]:
        return await door.clusters_with_stage()

    clusters = [
        ClusterAnswer.model_construct(**{name: getattr(spec, name) for name in type(spec).model_fields}, stage=stage)
        for spec, stage in ask(who(actor), question)
        if cluster in ("", spec.name)
    ]
    if cluster and not clusters:
        raise BadInput(f"cluster {cluster!r} is not in the ledger: `backstop fleet show` lists them")
    if as_json:
        show_json(ClustersAnswer(clusters=tuple(clusters)).as_json())
    else:
        show(*(cluster_parts(clusters[0]) if cluster else fleet_parts(clusters)))
