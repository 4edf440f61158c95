"""`backstop fleet`: a fleet file into the ledger, and the ledger's clusters onto the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands import fleet_rollout as fleet_rollouts
from cli.options import (
    SET_UP,
    Actor,
    AsJson,
    SettingsOption,
    checked,
    examples,
    named,
    policy_with,
    settings_given,
    who,
)
from cli.session import ask
from models.cluster.policy import Policy
from models.cluster.sources import SlurmSource
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.cluster.fleet_file import ClusterSpec, Fleet


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Import the fleet, show it, and say how its rollout goes on.")
    group.command(
        "import",
        epilog=examples(
            "backstop fleet import examples/fleet.yaml",
            "backstop fleet import fleet.yaml --health health.csv",
            "backstop fleet import --health health.csv",
            "backstop fleet import --jobs jobs.csv",
            "backstop fleet import --slurm h100-lab --root research-org --policy 'owners=[\"capacity\"]'",
        ),
    )(import_)
    group.command("show", epilog=examples("backstop fleet show", "backstop fleet show h100-worked --json"))(show_)
    fleet_rollouts.add_to(group)
    app.add_typer(group, name="fleet", rich_help_panel=SET_UP)


def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="YAML or JSON; docs/fleet-file.md has its fields. Left out: only --health or --jobs.",
            show_default=False,
        ),
    ] = "",
    health: Annotated[
        str, typer.Option(metavar="CSV", help="Health history: cluster,island,time,total_gpus,healthy_gpus.")
    ] = "",
    jobs: Annotated[
        str, typer.Option(metavar="CSV", help="Jobs by name: cluster,job,team,gpus,started and more (docs/flex.md).")
    ] = "",
    slurm: Annotated[
        str, typer.Option(metavar="NAME", help="A cluster as this Slurm cluster has it: its limits are the quotas.")
    ] = "",
    root: Annotated[
        str,
        typer.Option(
            metavar="ACCOUNT",
            help="With --slurm: the account under which the teams' accounts are; as it was imported, or root.",
        ),
    ] = "",
    connection: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="With --slurm: how the worker reaches it (docs/slurm.md); as it was imported, or local.",
        ),
    ] = "",
    size_flex: Annotated[
        bool | None,
        typer.Option(
            "--size-flex/--no-size-flex",
            help="With --slurm: set the limit of the flex QOS too, which takes an Administrator in Slurm.",
            show_default=False,
        ),
    ] = None,
    settings: SettingsOption = None,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Bring a fleet file into the ledger, whole or not at all. Both files are checked before anything is sent.

    What the file leaves out stays as it is: nothing is removed. Health may come alone, for clusters that the ledger
    has: a file with the quotas of before a rollout is refused while that is open.
    """
    from client.inputs.documents import read_fleet
    from client.inputs.health_samples import read_health
    from client.inputs.jobs import read_jobs

    if not (file or health or jobs or slurm):
        raise BadInput("FILE is missing: give a fleet file, --health, --jobs or --slurm, or several")
    if file and slurm:
        raise BadInput(f"--slurm {slurm} is given beside {file}: give one of them (a file may say slurm: of a cluster)")
    fleet = read_fleet(file) if file else None
    samples = read_health(health, fleet.clusters) if health and fleet is not None else ()
    by_name = read_jobs(jobs) if jobs else ()

    from cli.answers import ImportAnswer
    from cli.output import count, line, show, show_json

    if not slurm:
        for option, value in (("--policy", settings), ("--root", root), ("--connection", connection)):
            if value:
                raise BadInput(f"{option} is given without --slurm: write it into the fleet file")
        if size_flex is not None:
            raise BadInput("--size-flex is given without --slurm: write it into the fleet file")
    over = settings_given("--policy", settings or ())
    policy_with(Policy(), over, "", "")
    asked = {"cluster": slurm, "root": root, "connection": connection, "size_flex": size_flex}
    source = {field: value for field, value in asked.items() if value not in ("", None)}
    checked(SlurmSource, **source)

    async def question(door: Backstop) -> tuple[dict[str, int], int, int]:
        given_fleet = fleet
        if slurm:
            given_fleet = await _from_slurm(door, named(slurm), source, over)
        counts = {} if given_fleet is None else await door.import_fleet(given_fleet)
        given = samples
        if health and fleet is None:
            given = read_health(health, await door.clusters())
        rows = await door.add_health(given) if given else 0
        return counts, rows, await door.add_jobs(by_name) if by_name else 0

    counts, rows, many = ask(who(actor), question)
    if as_json:
        show_json(ImportAnswer(file=file or slurm, counts=counts, health_rows=rows, jobs=many).as_json())
        return
    said = [f"{number} {what.removesuffix('s') if number == 1 else what}" for what, number in counts.items()]
    said += [count(rows, "health row")] * bool(health) + [count(many, "job")] * bool(jobs)
    names = (file, f"Slurm cluster {slurm}" if slurm else "", health, jobs)
    show(line(("Imported", "bold"), f" {', '.join(n for n in names if n)}: {', '.join(said)}."))


async def _from_slurm(door: Backstop, name: str, source: dict[str, Any], over: dict[str, Any]) -> Fleet:
    """The cluster as Slurm has it; what only Backstop knows of it stays as it is, but for what is said here."""
    from models.cluster.fleet_file import Fleet

    known = next((spec for spec in await door.clusters() if spec.name == name), None)
    before = (None if known is None else known.slurm) or SlurmSource()
    found = await door.describe_slurm(name, before.model_copy(update=source))
    fields = ("policy", "gpu_model", "windows", "prometheus")
    kept = {} if known is None else {name: getattr(known, name) for name in fields}
    kept["policy"] = {**kept.get("policy", {}), **over}
    return Fleet(clusters=(found.model_copy(update=kept),))


def show_(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER", help="One cluster in full; without it, all.", show_default=False, callback=named
        ),
    ] = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show the clusters of the ledger with present quotas and latest health."""
    from cli.answers import ClusterAnswer, ClustersAnswer
    from cli.output import show, show_json
    from cli.views.fleet import cluster_parts, fleet_parts

    async def question(door: Backstop) -> list[tuple[ClusterSpec, str | None]]:
        return await door.clusters_with_stage()

    found = [
        ClusterAnswer.model_construct(**{name: getattr(spec, name) for name in type(spec).model_fields}, stage=stage)
        for spec, stage in ask(who(actor), question)
        if cluster in ("", spec.name)
    ]
    if cluster and not found:
        raise BadInput(f"cluster {cluster!r} is not in the ledger: `backstop fleet show` lists them")
    if as_json:
        show_json(ClustersAnswer(clusters=tuple(found)).as_json())
    else:
        show(*(cluster_parts(found[0]) if cluster else fleet_parts(found)))
