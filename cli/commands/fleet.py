"""`backstop fleet`: the group, and `show`, which lists the ledger's clusters."""

from __future__ import annotations

import typer

from cli.commands import fleet_file, fleet_import, fleet_rollout
from cli.completion_names import note_fleet
from cli.list_options import Listing, listed
from cli.options import ROLL_OUT, Actor, ClusterOrAll, actor_of, examples
from cli.session import ask
from models.errors import BadInput, Refusal


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Import the fleet, show it, and roll it out in waves.")
    fleet_import.add_to(group)
    fleet_file.add_to(group)
    group.command(
        "show",
        epilog=examples("backstop fleet show", "backstop fleet show --filter gpu_model=H100 --sort -promised_gpus"),
    )(show_)
    fleet_rollout.add_to(group)
    app.add_typer(group, name="fleet", rich_help_panel=ROLL_OUT)


@listed
def show_(cluster: ClusterOrAll = "", *, how: Listing, actor: Actor = "") -> None:
    """Show the clusters of the ledger with present quotas and latest health."""
    from cli.json_answers import ClustersAnswer
    from cli.output import report_left_out
    from views.cluster_answer import ClusterAnswer
    from views.fleet import cluster_parts, fleet_parts

    if cluster:
        how.of_one(f"CLUSTER {cluster!r}")
    described = ask(actor_of(actor), lambda door: door.describe_clusters())
    wrong = {one.name: one.wrong for one in described if one.cluster is None}
    if cluster in wrong:
        raise Refusal(wrong[cluster])
    clusters = [
        ClusterAnswer.of(one.cluster, one.stage)
        for one in described
        if one.cluster is not None and cluster in ("", one.cluster.name)
    ]
    if cluster and not clusters:
        raise BadInput(f"cluster {cluster!r} is not in the ledger: `backstop fleet show` lists the clusters")
    report_left_out(wrong if not cluster else {})
    if not cluster:
        note_fleet({c.name: c.stage or "" for c in clusters}, (quota.team for c in clusters for quota in c.quotas))
    chosen = how.rows(clusters, ClusterAnswer)
    how.tell(
        lambda: ClustersAnswer(clusters=tuple(chosen), left_out={} if cluster else wrong),
        lambda: cluster_parts(chosen[0]) if cluster else fleet_parts(chosen),
        [c.name for c in chosen],
        (len(clusters), "cluster"),
    )
