"""`backstop fleet import`: import a fleet file, a Slurm cluster, health and jobs into the ledger."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cli.commands.fleet_file import Prune, Reset, diff_answer, places_of, take_file, warn
from cli.consent import Yes, consent
from cli.options import (
    Actor,
    AsJson,
    Overlay,
    SettingsOption,
    actor_of,
    arg,
    check_model,
    examples,
    flag,
    opt,
    optional_cluster,
    settings_given,
)
from cli.session import ask
from models.cluster.classes import those_of
from models.cluster.import_outcome import Verb
from models.cluster.policy import Policy
from models.cluster.sources import SlurmSource
from models.errors import BackstopError, BadInput

if TYPE_CHECKING:
    from cli.json_answers_fleet_file import ImportAnswer
    from client.backstop import Backstop
    from client.inputs.documents import FleetDocument
    from models.cluster.fleet_file import ClusterSpec
    from models.cluster.import_outcome import FleetOutcome, ImportTerms
    from models.cluster.jobs import ClusterJob
    from models.cluster.quota import Quota
    from models.cluster.readings import HealthSample


FleetFiles = Annotated[
    list[str] | None,
    arg(
        "FILE",
        "YAML or JSON (docs/fleet-file.md; - is stdin), or tables as CSV. Leave it out to import "
        "only what --health, --jobs or --slurm name.",
        show_default=False,
    ),
]
HealthFile = Annotated[
    str, opt("CSV", "Health history, with columns cluster, island, time, total_gpus and healthy_gpus.")
]
JobsFile = Annotated[str, opt("CSV", "The list of running jobs (docs/flex.md).")]
Slurm = Annotated[str, opt("NAME", "Import this Slurm cluster; its limits become the quotas.")]
Root = Annotated[
    str,
    opt("ACCOUNT", "With --slurm: the parent account of the teams' accounts. Default: as imported before, else root."),
]
ConnectionName = Annotated[
    str,
    opt("NAME", "With --slurm: how the worker reaches Slurm (docs/slurm.md). Default: as imported before, else local."),
]
SizeFlex = Annotated[
    bool | None,
    flag(
        "--size-flex/--no-size-flex",
        "With --slurm: from now on Backstop also sets the limit of the flex QOS, which needs "
        "AdminLevel=Administrator in Slurm; the import itself writes nothing to Slurm.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, flag("--dry-run", "Show what the import would do; change nothing.")]
Whole = Annotated[
    bool, flag("--whole", "Import nothing if any line of the file is refused. Default: import the other lines.")
]


def add_to(group: typer.Typer) -> None:
    group.command(
        "import",
        epilog=examples(
            "backstop fleet import examples/fleet.yaml",
            "backstop fleet import fleet.yaml --health health.csv",
            "backstop fleet import clusters.csv quotas.csv --prune",
            "backstop fleet import --health health.csv",
            "backstop fleet import --slurm h100-lab --root research-org --policy 'owners=[\"capacity\"]'",
        ),
    )(import_)


def import_(
    files: FleetFiles = None,
    health: HealthFile = "",
    jobs: JobsFile = "",
    slurm: Slurm = "",
    root: Root = "",
    connection: ConnectionName = "",
    size_flex: SizeFlex = None,
    settings: SettingsOption = None,
    dry_run: DryRun = False,
    prune: Prune = False,
    reset: Reset = False,
    whole: Whole = False,
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Bring a fleet file into the ledger. Every file is checked, and every fault reported, before anything is sent.

    What the file leaves out stays. A line that would change a quota under an open rollout is refused: its cluster
    stays as it is, the rest goes in, and the command ends with 3. You can import health alone; an invalid row then
    leaves out only its own cluster, and the command ends with 1.
    """
    paths = list(files or ())
    if not (paths or health or jobs or slurm):
        raise BadInput("FILE is missing: give a fleet file, --health, --jobs or --slurm, or several")
    if paths and slurm:
        raise BadInput(
            f"--slurm {slurm} is given together with {paths[0]}: give one of them (in a fleet file, use the cluster's "
            "field `slurm`)"
        )
    if prune and slurm:
        raise BadInput(
            "--prune is given together with --slurm: leave --prune out, because the import already removes the quotas "
            "that Slurm no longer has (to remove a whole cluster: backstop fleet remove)"
        )
    _refuse_without_file(bool(paths), prune=prune, reset=reset, whole=whole, dry_run=dry_run)
    document, samples, by_name = _read(paths, health, jobs)
    source = _source(slurm, root, connection, size_flex, settings)
    policy = settings_given("--policy", settings or ())
    Overlay(policy).apply_to(Policy())

    from models.cluster.import_outcome import ImportTerms  # with the planner behind it: a refusal need not wait for it

    terms = ImportTerms(dry_run=dry_run, prune=prune, reset=reset, whole=whole)
    if document is not None and prune and not (dry_run or yes):
        terms = _agree_to_removal(document, terms, actor_of(actor), as_json=as_json)
    asked = _Asked(health, jobs, slurm, document, samples, by_name, source, policy, terms)
    answer, outcome = ask(actor_of(actor), partial(_bring_in, asked))
    _tell(asked, answer, outcome, as_json=as_json)


class _Asked(NamedTuple):
    """The input of one import, read and checked."""

    health: str
    jobs: str
    slurm: str
    document: FleetDocument | None
    samples: Sequence[HealthSample]
    """Health of the document's clusters. Without a document it is read later, for the ledger's clusters."""
    by_name: Sequence[ClusterJob]
    source: dict[str, Any]
    policy: dict[str, Any]
    terms: ImportTerms


def _read(
    files: Sequence[str], health: str, jobs: str
) -> tuple[FleetDocument | None, Sequence[HealthSample], Sequence[ClusterJob]]:
    """Read the files, and check them against one another. Errors: BadInput, BadFile."""
    from client.inputs.fleet_tables import read_fleet_files
    from client.inputs.health_samples import read_health
    from client.inputs.jobs import classes_in, read_jobs

    document = read_fleet_files(files) if files else None
    samples = read_health(health, document.fleet.clusters) if health and document is not None else ()
    classes = {} if document is None else classes_in(document.fleet)
    return document, samples, read_jobs(jobs, classes) if jobs else ()


async def _bring_in(asked: _Asked, door: Backstop) -> tuple[ImportAnswer, FleetOutcome | None]:
    from cli.json_answers_fleet_file import ImportAnswer

    document, dry_run = asked.document, asked.terms.dry_run
    counts: dict[str, int] = {}
    outcome, unread, gone = None, tuple[str, ...](), tuple[str, ...]()
    if document is not None:
        outcome = await take_file(door, document, asked.terms)
        counts = outcome.counts
    elif asked.slurm:
        counts, unread, gone = await _from_slurm(door, asked)
    rows, left_out = await _health_rows(door, asked)
    many = await _job_rows(door, asked)
    fleet_answer = (
        None if document is None or outcome is None else diff_answer(document, outcome, prune=asked.terms.prune)
    )
    answer = ImportAnswer(
        file=asked.slurm if document is None else document.name,
        counts=counts,
        health_rows=rows,
        jobs=many,
        left_out=left_out,
        dry_run=dry_run,
        fleet=fleet_answer,
        unread=unread,
        gone=gone,
    )
    return answer, outcome


async def _health_rows(door: Backstop, asked: _Asked) -> tuple[int, dict[str, str]]:
    """Add health; return how many rows, and by cluster why its rows were left out."""
    from client.inputs.health_samples import read_health

    left_out: dict[str, str] = {}
    alone = asked.health and asked.document is None
    looks = read_health(asked.health, await door.clusters(), left_out=left_out) if alone else asked.samples
    return await _add_health(door, looks, left_out) if looks and not asked.terms.dry_run else 0, left_out


async def _job_rows(door: Backstop, asked: _Asked) -> int:
    """Add jobs; return how many. Errors: BadInput for a class that its team's quota does not have."""
    from client.inputs.jobs import read_jobs

    if not asked.by_name or asked.terms.dry_run:
        return 0
    if classed := {job.cluster for job in asked.by_name if job.job_class is not None}:
        read_jobs(asked.jobs, await _classes(door, classed))
    return await door.add_jobs(asked.by_name)


def _tell(asked: _Asked, answer: ImportAnswer, outcome: FleetOutcome | None, *, as_json: bool) -> None:
    """Print the result. Errors: Exit with 3 where a line was refused, with 1 where health was left out."""
    from cli.output import complain, show, show_json
    from views.words import line

    document = asked.document
    if document is not None and outcome is not None:
        warn(document, outcome)
    if as_json:
        show_json(answer.as_json())
    else:
        if outcome is None or outcome.done:
            _show_imported(answer, outcome, asked)
        if document is not None and outcome is not None:
            _show_beside(document, outcome)
        if answer.health_rows:
            show(line("The import of health cannot be undone: samples stay, and the latest of each island counts."))
    for sentence in (*answer.gone, *answer.unread):
        complain(f"warning: {asked.slurm}: {sentence}")
    for cluster, why in sorted(answer.left_out.items()):
        complain(f"the health of {cluster} was left out: {why}")
    if outcome is not None and outcome.totals.get(Verb.REFUSED):
        from cli.main import NOT_ALLOWED

        raise typer.Exit(NOT_ALLOWED)
    if answer.left_out:
        raise typer.Exit(1)


def _refuse_without_file(has_file: bool, **options: bool) -> None:
    for name, value in options.items():
        if value and not has_file:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} needs a fleet file: give FILE, or leave {option} out")


def _agree_to_removal(document: FleetDocument, terms: ImportTerms, actor: str, *, as_json: bool) -> ImportTerms:
    """Show what would be removed, and ask. Errors: those of `consent`."""
    from views.fleet_diff import lost_parts
    from views.words import line

    tried = terms.model_copy(update={"dry_run": True})
    shown = ask(actor, lambda door: take_file(door, document, tried))
    if gone := shown.of(Verb.REMOVED):
        lines = [*(line(("- ", "red"), each.sentence) for each in gone), *lost_parts(shown)]
        many = shown.totals[Verb.REMOVED]
        question = f"Remove {'1 entry' if many == 1 else f'{many:,} entries'}?"
        consent(question, lambda: lines, yes=False, as_json=as_json)
    return terms.model_copy(update={"agreed": shown.removal})


def _show_beside(document: FleetDocument, outcome: FleetOutcome) -> None:
    """Show lines that did not go in as the file has them, and what stays although the file leaves it out."""
    from cli.output import show
    from views.fleet_diff import diff_parts, left_out_text, summary_text, undo_text
    from views.words import line

    parts = diff_parts(outcome, places_of(document, outcome.of(Verb.REFUSED)))
    stays = left_out_text(outcome)
    tried = f"{document.name} would be imported: {summary_text(outcome)}. Nothing was changed."
    show(*parts, *([line(f"{stays}.")] if stays else []), *([] if outcome.done else [line(tried)]))
    if undo := undo_text(outcome):
        show(line(undo))
    if outcome.done and outcome.of(Verb.REMOVED):
        for name in [each.cluster for each in outcome.of(Verb.REMOVED) if each.kind == "cluster"]:
            show(line(f"Undo: backstop fleet export --removed {shlex.quote(name)} | backstop fleet import -"))


async def _add_health(door: Backstop, samples: Sequence[HealthSample], left_out: dict[str, str]) -> int:
    """Add samples; return how many rows. A refused cluster is left out. Errors: BadInput if all are refused."""
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
    """Return the quotas' classes in the ledger, without clusters that it does not have or cannot plan."""
    classes: dict[tuple[str, str], tuple[str, ...]] = {}
    for cluster in sorted(clusters):
        try:
            snapshot, policy = await door.snapshot(cluster)
        except BackstopError:
            continue
        classes |= {(cluster, quota.team): those_of(quota.classes, policy.classes) for quota in snapshot.quotas}
    return classes


def _source(
    slurm: str, root: str, connection: str, size_flex: bool | None, settings: Sequence[str] | None
) -> dict[str, Any]:
    """Return the options of a cluster's SlurmSource. Errors: BadInput, also for options without a cluster."""
    asked = {"cluster": slurm, "root": root, "connection": connection, "size_flex": size_flex}
    source = {field: value for field, value in asked.items() if value not in ("", None)}
    if not slurm:
        for option, setting in (
            *(("--policy", settings), ("--root", root), ("--connection", connection)),
            ("--size-flex", size_flex is not None),
        ):
            if setting:
                raise BadInput(f"{option} needs --slurm; without --slurm, write this setting into the fleet file")
    check_model(SlurmSource, **source)
    return source


def _show_imported(answer: ImportAnswer, outcome: FleetOutcome | None, asked: _Asked) -> None:
    """Print the counts: those of lines for a file, as on a dry run; those of quotas without one."""
    from cli.output import show
    from views.fleet_diff import summary_text
    from views.words import count, line

    clusters = () if asked.document is None else asked.document.fleet.clusters
    in_file = {"clusters": len(clusters), "quotas": sum(len(c.quotas) for c in clusters)}
    whole = [
        count(number, what[:-1]) if number >= in_file[what] else f"{number} of {count(in_file[what], what[:-1])}"
        for what in in_file
        if (number := answer.counts.get(what)) is not None
    ]
    rows = [count(answer.health_rows, "health row")] * bool(asked.health)
    rows += [count(answer.jobs, "job")] * bool(asked.jobs)
    changes = [f"{n} {what}" for what in ("added", "changed", "removed") if (n := answer.counts.get(what)) is not None]
    summary = summary_text(outcome) if outcome is not None else ", ".join(changes)
    names = ("" if asked.document is None else answer.file, f"Slurm cluster {asked.slurm}" if asked.slurm else "")
    shown = ", ".join(name for name in (*names, asked.health, asked.jobs) if name)
    parts = "; ".join(part for part in (", ".join([*whole, *rows]), summary) if part)
    show(line(("Imported", "bold"), f" {shown}: {parts}."))


async def _from_slurm(door: Backstop, asked: _Asked) -> tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]:
    """Import the cluster from Slurm. Fields that Slurm does not have stay, except those that options set.

    Returns the counts of changes, what of Slurm is not read, and what was lost with removed accounts and islands.
    """
    from cli.ledger_direct_writes import stage_import
    from models.cluster.fleet_file import Fleet
    from models.cluster.import_outcome import ImportTerms
    from models.questions import DescribeSlurm
    from models.texts import gpus_text

    name = optional_cluster(asked.slurm)
    ours = next(iter(await door.clusters_named([name])), None)
    before = (None if ours is None else ours.slurm) or SlurmSource()
    question = DescribeSlurm(cluster=name, slurm=before.model_copy(update=asked.source))
    cluster = await door.ask(question)
    fleet = Fleet(clusters=(_as_slurm_says(cluster, asked.policy),))
    counts = (await door.take_fleet(fleet, ImportTerms(whole=True, partial=True), stage_import)).counts
    if ours is None:
        return counts, cluster.unread, ()
    if ours.slurm != question.slurm:  # from now on the ledger follows this one
        cluster = await door.ask(question)
    # An import leaves the quotas of such a cluster to the mirror: what moved is what the ledger had, beside Slurm.
    had, has = (
        {quota.team: (quota.gpus, quota.parent) for quota in quotas} for quotas in (ours.quotas, cluster.quotas)
    )
    moved = {
        "added": len(has.keys() - had.keys()),
        "changed": sum(1 for team in has.keys() & had.keys() if has[team] != had[team]),
        "removed": len(had.keys() - has.keys()),
    }
    gone = [sentence for quota in ours.quotas if quota.team not in has and (sentence := _name_losses(quota))]
    there = {island.name for island in cluster.islands}
    lost = [f"{i.name} ({gpus_text(i.total_gpus)})" for i in ours.islands if i.name not in there]
    gone += [f"Slurm has no GPU in island {island} any more, so the import removes it" for island in lost]
    return counts | moved, cluster.unread, tuple(gone)


def _as_slurm_says(cluster: ClusterSpec, policy: dict[str, Any]) -> ClusterSpec:
    """Return the cluster without fields that Slurm does not have: as for a table, these stay as they are."""
    from models.cluster.fleet_file import ClusterSpec

    quotas = tuple(quota.model_copy(update={"parent": quota.parent}) for quota in cluster.quotas)
    fields = ("name", "gpus_per_node", "islands", "slurm")
    slurms_own = {field: getattr(cluster, field) for field in fields} | ({"policy": policy} if policy else {})
    return ClusterSpec(quotas=quotas, **slurms_own)


def _name_losses(quota: Quota) -> str:
    """Say what was lost with a removed account; empty: nothing that a person had set."""
    fields = ("islands", "protected_blocks", "minimum_gpus", "namespaces", "classes")
    lost = [field for field in fields if getattr(quota, field) not in (None, (), 0)]
    what = f"Slurm no longer has a quota for {quota.team}: the import removes the quota and these settings, which only"
    return f"{what} the ledger has: {', '.join(lost)}" if lost else ""
