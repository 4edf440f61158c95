"""`backstop fleet diff`, `export`, `template`, `remove`, `rename`: keep the fleet file and the ledger in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.consent import Yes, consent
from cli.list_options import tell
from cli.options import Actor, AsJson, Cluster, ReasonOption, actor_of, arg, examples, flag, needed_cluster, opt
from cli.session import ask
from models.errors import BadInput, Refusal

if TYPE_CHECKING:
    from cli.json_answers_fleet_file import FleetDiffAnswer
    from client.backstop import Backstop
    from client.inputs.documents import FleetDocument
    from models.cluster.fleet_export import FleetPage
    from models.cluster.import_outcome import Departure, FleetOutcome, ImportTerms, Line, Oddity

Files = Annotated[
    list[str],
    arg("FILE", "YAML or JSON (docs/fleet-file.md), or tables as CSV (`backstop fleet template`).", show_default=False),
]
Prune = Annotated[bool, flag("--prune", "Remove what is in the ledger and not in the file, after asking.")]
Reset = Annotated[
    bool,
    flag("--reset", "Take the file's quotas even if an ended rollout or an approved request has changed them since."),
]


def add_to(group: typer.Typer) -> None:
    group.command(
        "diff", epilog=examples("backstop fleet diff fleet.yaml", "backstop fleet diff clusters.csv quotas.csv --prune")
    )(diff)
    group.command(
        "export",
        epilog=examples(
            "backstop fleet export > fleet.yaml", "backstop fleet export --removed h100-typo | backstop fleet import -"
        ),
    )(export)
    group.command("template", epilog=examples("backstop fleet template quotas > quotas.csv"))(template_)
    group.command("remove", epilog=examples("backstop fleet remove h100-typo --reason 'a typo'"))(remove)
    group.command("rename", epilog=examples("backstop fleet rename h100-wroked h100-worked --reason 'a typo'"))(rename)


async def take_file(door: Backstop, document: FleetDocument, terms: ImportTerms) -> FleetOutcome:
    """Import the file, or on a dry run say what would change. Its contacts' secrets go straight into the ledger."""
    from cli.ledger_direct_writes import stage_import

    source = {"file": document.name[:2000], "partial": document.partial}
    return await door.take_fleet(document.fleet, terms.model_copy(update=source), stage_import)


def places_of(document: FleetDocument, lines: Sequence[Line | Oddity]) -> dict[tuple[str | int, ...], str]:
    """Return the place in the file of each line that has one, by its path."""
    paths = list(dict.fromkeys(line.path for line in lines if line.path))
    return dict(zip(paths, document.places(paths), strict=True)) if paths else {}


def warn(document: FleetDocument, outcome: FleetOutcome) -> None:
    """Warn on standard error of legal but odd entries."""
    from cli.output import complain

    for odd, place in zip(outcome.oddities, _places(document, outcome.oddities), strict=True):
        complain(f"warning: {place}: {odd.text}")


def _places(document: FleetDocument, lines: Sequence[Line | Oddity]) -> list[str]:
    """Return the place of each line in the file; the file's name where a line has none."""
    where = places_of(document, lines)
    return [where.get(each.path, document.name) for each in lines]


def diff_answer(document: FleetDocument, outcome: FleetOutcome, *, prune: bool) -> FleetDiffAnswer:
    """Return, as JSON, what an import did or would do with each line."""
    from cli.json_answers_fleet_file import FleetDiffAnswer, FleetLine, FleetWarning
    from models.cluster.import_outcome import Verb

    where = dict(zip((id(line) for line in outcome.lines), _places(document, outcome.lines), strict=True))
    lines: dict[str, Any] = {
        verb.value: tuple(FleetLine.of(line, where[id(line)] if line.path else "") for line in outcome.of(verb))
        for verb in Verb
    }
    odd = zip(outcome.oddities, _places(document, outcome.oddities), strict=True)
    warnings = tuple(FleetWarning(place=place, text=each.text) for each, place in odd)
    totals = {verb.value: outcome.totals.get(verb, 0) for verb in Verb}
    return FleetDiffAnswer(
        file=document.name,
        prune=prune,
        differs=outcome.differs,
        totals=totals,
        untouched=outcome.untouched,
        warnings=warnings,
        **lines,
    )


def diff(
    files: Files,
    prune: Annotated[bool, flag("--prune", "Show what an import with --prune would do.")] = False,
    reset: Annotated[bool, flag("--reset", "Show what an import with --reset would do.")] = False,
    exit_code: Annotated[bool, flag("--exit-code", "Exit with 1 if there is a difference.")] = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show what an import of the file would do, and change nothing.

    Marks: + added, ~ changed, - removed, ! refused, = left alone, because a rollout, an approved request, Slurm or
    a health source set it.
    """
    from client.inputs.fleet_tables import read_fleet_files
    from models.cluster.import_outcome import ImportTerms, Verb
    from views.fleet_diff import diff_parts, left_out_parts, summary_text
    from views.words import line

    document = read_fleet_files(files)
    outcome = ask(
        actor_of(actor), lambda door: take_file(door, document, ImportTerms(dry_run=True, prune=prune, reset=reset))
    )
    warn(document, outcome)
    refused = outcome.of(Verb.REFUSED)
    summary = line((f"{document.name}: ", "bold"), f"{summary_text(outcome)}.")
    tell(
        diff_answer(document, outcome, prune=prune),
        lambda: [
            *diff_parts(outcome, places_of(document, refused)),
            *left_out_parts(outcome),
            summary,
        ],
        as_json=as_json,
    )
    if exit_code and outcome.differs:
        raise typer.Exit(1)


def export(
    file: Annotated[str, arg("FILE", "The file to write. Default: standard output.", show_default=False)] = "-",
    cluster: Annotated[list[str] | None, opt("NAME", "Only this cluster. Repeatable.", "--cluster")] = None,
    removed: Annotated[str, opt("NAME", "Write a removed cluster instead, from the ledger's archive.")] = "",
    actor: Actor = "",
) -> None:
    """Write the fleet file that would recreate the ledger's present state. The same state always gives the
    same file, byte by byte.

    Measured use is left out; healthy_gpus are the latest. A secret contact is written as slack://***, which an import
    reads as the contact in the ledger.
    """
    from cli.output import complain, write
    from client.inputs.fleet_yaml_writer import fleet_yaml

    if removed and cluster:
        raise BadInput(f"--cluster {cluster[0]} is given together with --removed {removed}: give one of them")
    if removed:
        document = ask(actor_of(actor), lambda door: _read_removed(door, removed))
    else:
        pages = ask(actor_of(actor), lambda door: door.fleet_pages())
        document = _document(pages, cluster or ())
        for page in pages:
            for name, why in sorted(page.wrong.items()):
                complain(f"left out: {name}: {why}")
            for name, teams in sorted(page.cut_floors.items()):
                below = "because these teams' quotas, or their parent quotas, are below the minimums"
                complain(f"{name}: minimums are written smaller than in the ledger, {below}: {', '.join(teams)}")
    write(file, "FILE", fleet_yaml(document))


def _document(pages: Sequence[FleetPage], only: Sequence[str]) -> dict[str, Any]:
    from cli.output import complain
    from models.cluster.contact_secrets import is_masked
    from views.words import count

    clusters = [c for page in pages for c in page.clusters if not only or c["name"] in only]
    if unknown := sorted(set(only) - {c["name"] for c in clusters}):
        raise BadInput(f"cluster {unknown[0]!r} is not in the ledger: `backstop fleet show` lists the clusters")
    if not clusters:
        raise Refusal("there is nothing to export: the ledger has no cluster")
    document: dict[str, Any] = {"policy": pages[0].policy} if pages[0].policy and not only else {}
    document["clusters"] = clusters
    teams = pages[0].teams
    if only:
        held = {quota["team"] for cluster in clusters for quota in cluster["quotas"]}
        teams = tuple(team for team in teams if team.name in held)
    if teams:
        document["teams"] = [t.model_dump(mode="json", exclude_defaults=True) for t in teams]
    masked = sum(any(map(is_masked, team.contacts)) for team in teams)
    if masked:
        complain(
            f"contacts of {count(masked, 'team')} contain secrets, which the file shows as ***; an import into this "
            "ledger keeps the secrets"
        )
    return document


async def _read_removed(door: Backstop, cluster: str) -> dict[str, Any]:
    from models.cluster.fleet_export import in_file_order

    rows, _ = await door.read_archive(cluster)
    was = [row.entry.data["cluster"] for row in rows if isinstance(row.entry.data.get("cluster"), dict)]
    if not was:
        raise Refusal(
            f"the archive has no removal of cluster {cluster!r}: see `backstop audit {_word(cluster)} --archive`"
        )
    return {"clusters": [in_file_order(was[-1])]}


def template_(
    what: Annotated[str, arg("WHAT", "clusters, quotas or teams (CSV tables), or fleet (a YAML file).")] = "fleet",
) -> None:
    """Print a file to start from: a table's header with an example row, or a small fleet file."""
    from cli.output import write
    from client.inputs.fleet_tables import FLEET_TEMPLATES
    from client.inputs.fleet_yaml_writer import EXAMPLE

    if what not in (*FLEET_TEMPLATES, "fleet"):
        raise BadInput(f"WHAT must be one of {', '.join((*FLEET_TEMPLATES, 'fleet'))}, not {what!r}")
    write("-", "FILE", EXAMPLE if what == "fleet" else FLEET_TEMPLATES[what])


def remove(
    cluster: Cluster, reason: ReasonOption = "", yes: Yes = False, as_json: AsJson = False, actor: Actor = ""
) -> None:
    """Remove a cluster from the ledger, with its health history and past rollouts. Its archive stays.

    Backstop shows what it will remove, and asks. Refused while a rollout or a request is open there.
    """
    from models.questions import RemoveCluster
    from views.words import line

    def make_question(dry_run: bool) -> RemoveCluster:
        return RemoveCluster(cluster=cluster, reason=reason, dry_run=dry_run)

    bring_back = f"backstop fleet export --removed {_word(cluster)} | backstop fleet import -"
    also = (
        line("  remove the cluster from the fleet file too, or the next import adds it again"),
        line(f"  to bring the cluster and its quotas back: {bring_back}"),
    )
    answer = _ask_and_do(
        make_question, f"Remove {cluster} from the ledger?", *also, yes=yes, as_json=as_json, actor=actor
    )
    _tell(answer, "removed", f"Undo: {bring_back}", as_json=as_json)


def rename(
    cluster: Cluster,
    name: Annotated[str, arg("NEW", "The new name.", show_default=False, callback=needed_cluster)],
    reason: ReasonOption = "",
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Rename a cluster, with its quotas, health, use, hourly records and past rollouts.

    Its archive keeps the old name. Backstop renames nothing in Slurm or Prometheus. Rename the cluster in the
    fleet file as well. Refused while a rollout or a request is open there.
    """
    from models.questions import RenameCluster
    from views.words import line

    def make_question(dry_run: bool) -> RenameCluster:
        return RenameCluster(cluster=cluster, name=name, reason=reason, dry_run=dry_run)

    also = line("  rename the cluster in the fleet file too, and in exporters that write the ledger's tables")
    answer = _ask_and_do(
        make_question, f"Rename {cluster} to {name}?", also, yes=yes, as_json=as_json, actor=actor, renamed=True
    )
    _tell(answer, f"renamed to {name}", f"Undo: backstop fleet rename {_word(name)} {_word(cluster)}", as_json=as_json)


def _word(name: str) -> str:
    import shlex

    return shlex.quote(name)


def _ask_and_do(
    asked: Any, sentence: str, *also: Any, yes: bool, as_json: bool, actor: str, renamed: bool = False
) -> Departure:
    """Show what changes, ask, and do it. Errors: Refusal if a rollout or request is open; those of `consent`."""
    from views.fleet_diff import undone_parts

    speaker = actor_of(actor)
    shown: Departure = ask(speaker, lambda door: door.ask(asked(True)))
    if shown.barred:
        raise Refusal(f"{shown.cluster} stays as it is: {shown.barred}")
    consent(sentence, lambda: [*undone_parts(shown, renamed=renamed), *also], yes=yes, as_json=as_json)
    done: Departure = ask(speaker, lambda door: door.ask(asked(False)))
    return done


def _tell(answer: Departure, what: str, undo: str, *, as_json: bool) -> None:
    from cli.json_answers_fleet_file import UndoneAnswer
    from views.words import line

    fields = answer.model_dump(include={"cluster", "summary", "history"})
    undone = UndoneAnswer(what=what, undo=undo.removeprefix("Undo: "), **fields)
    sentence = line((answer.cluster, "bold"), f": {what} ({answer.summary}).")
    tell(undone, lambda: [sentence, line(undo)], as_json=as_json)
