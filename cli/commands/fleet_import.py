"""`backstop fleet import`: a fleet file, a Slurm cluster, health and jobs into the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import Actor, AsJson, Overlay, SettingsOption, checked, examples, named, settings_given, who
from cli.session import ask
from models.cluster.classes import those_of
from models.cluster.policy import Policy
from models.cluster.sources import SlurmSource
from models.errors import BackstopError, BadInput

if TYPE_CHECKING:
    from cli.answers import ImportAnswer
    from client.backstop import Backstop
    from models.cluster.fleet_file import Fleet
    from models.cluster.readings import HealthSample


def add_to(group: typer.Typer) -> None:
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
    has: a file with the quotas of before a rollout is refused while that is open. Then a wrong row costs its own
    cluster alone, which is named: the others' health stands, and the command ends with 1.
    """
    from client.inputs.documents import read_fleet
    from client.inputs.health_samples import read_health
    from client.inputs.jobs import classes_in, read_jobs

    if not (file or health or jobs or slurm):
        raise BadInput("FILE is missing: give a fleet file, --health, --jobs or --slurm, or several")
    if file and slurm:
        raise BadInput(f"--slurm {slurm} is given beside {file}: give one of them (a file may say slurm: of a cluster)")
    fleet = read_fleet(file) if file else None
    samples = read_health(health, fleet.clusters) if health and fleet is not None else ()
    by_name = read_jobs(jobs, classes_in(fleet) if fleet is not None else {}) if jobs else ()
    source = _source(slurm, root, connection, size_flex, settings)
    policy = settings_given("--policy", settings or ())
    Overlay(policy).on(Policy())

    from cli.answers import ImportAnswer  # with the planner behind it, for which a refusal need not wait
    from cli.direct import stage_import
    from cli.output import complain, show_json

    async def question(door: Backstop) -> ImportAnswer:
        whole = await _from_slurm(door, named(slurm), source, policy) if slurm else fleet
        counts = {} if whole is None else await door.import_fleet(whole, stage_import)
        left_out: dict[str, str] = {}
        feed = health and fleet is None
        looks = read_health(health, await door.clusters(), left_out=left_out) if feed else samples
        rows = await _add_health(door, looks, left_out) if looks else 0
        if classed := {job.cluster for job in by_name if job.job_class is not None}:
            read_jobs(jobs, await _classes(door, classed))
        many = await door.add_jobs(by_name) if by_name else 0
        return ImportAnswer(file=file or slurm, counts=counts, health_rows=rows, jobs=many, left_out=left_out)

    answer = ask(who(actor), question)
    if as_json:
        show_json(answer.as_json())
    else:
        _show_imported(answer, file, slurm, health, jobs)
    if answer.left_out:
        for cluster, why in sorted(answer.left_out.items()):
            complain(f"the health of {cluster} was left out: {why}")
        raise typer.Exit(1)


async def _add_health(door: Backstop, samples: Sequence[HealthSample], left_out: dict[str, str]) -> int:
    """Answers how many rows stand. What the ledger refuses of one cluster is left out; of all, it is an error."""
    try:
        return await door.add_health(samples)
    except BadInput as error:
        clusters = sorted({sample.cluster for sample in samples})
        if len(clusters) == 1:
            raise error from None
    rows, wrong = 0, []
    for cluster in clusters:
        try:
            rows += await door.add_health([sample for sample in samples if sample.cluster == cluster])
        except BadInput as error:
            wrong.append(error)
            left_out[cluster] = error.message
    if len(wrong) == len(clusters):
        raise wrong[0]
    return rows


async def _classes(door: Backstop, clusters: Iterable[str]) -> dict[tuple[str, str], tuple[str, ...]]:
    """As the ledger has them; of a cluster that it does not have, or that makes no sense, it will say so itself."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for cluster in sorted(clusters):
        try:
            snapshot, policy = await door.snapshot(cluster)
        except BackstopError:
            continue
        found |= {(cluster, q.team): those_of(q.classes, policy.classes) for q in snapshot.quotas}
    return found


def _source(
    slurm: str, root: str, connection: str, size_flex: bool | None, settings: Sequence[str] | None
) -> dict[str, Any]:
    """What is said of a cluster's SlurmSource. Errors: BadInput, where it is said of no cluster too."""
    asked = {"cluster": slurm, "root": root, "connection": connection, "size_flex": size_flex}
    source = {field: value for field, value in asked.items() if value not in ("", None)}
    if not slurm:
        for option, given in (
            *(("--policy", settings), ("--root", root), ("--connection", connection)),
            ("--size-flex", size_flex is not None),
        ):
            if given:
                raise BadInput(f"{option} is given without --slurm: write it into the fleet file")
    checked(SlurmSource, **source)
    return source


def _show_imported(answer: ImportAnswer, file: str, slurm: str, health: str, jobs: str) -> None:
    from cli.output import count, line, show

    parts = [f"{n} {what.removesuffix('s') if n == 1 else what}" for what, n in answer.counts.items()]
    parts += [count(answer.health_rows, "health row")] * bool(health) + [count(answer.jobs, "job")] * bool(jobs)
    names = (file, f"Slurm cluster {slurm}" if slurm else "", health, jobs)
    show(line(("Imported", "bold"), f" {', '.join(n for n in names if n)}: {', '.join(parts)}."))


async def _from_slurm(door: Backstop, name: str, source: dict[str, Any], policy: dict[str, Any]) -> Fleet:
    """The cluster as Slurm has it; what only Backstop knows of it stays as it is, but for what is said here."""
    from models.cluster.fleet_file import Fleet
    from models.questions import DescribeSlurm

    ours = next((spec for spec in await door.clusters() if spec.name == name), None)
    before = (None if ours is None else ours.slurm) or SlurmSource()
    cluster = await door.ask(DescribeSlurm(cluster=name, slurm=before.model_copy(update=source)))
    fields = ("policy", "gpu_model", "windows", "prometheus")
    kept = {} if ours is None else {field: getattr(ours, field) for field in fields}
    kept["policy"] = {**kept.get("policy", {}), **policy}
    return Fleet(clusters=(cluster.model_copy(update=kept),))
