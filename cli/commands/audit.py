"""`backstop audit`: what happened, from workflow history or from the ledger's archive."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.burndown import moment_of
from cli.lists import Filter, Form, Listing, Output, Sort, like, listing
from cli.options import LOOK, examples, named_or_all, needed, who
from cli.session import ask
from models.errors import BadInput, Refusal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.answers import ArchiveLine, AuditLine, ChainAnswer


_DAY = re.compile(r"\d{8}|\d{4}-\d\d-\d\d|\d{4}-W\d\d-\d|\d{4}W\d{3}", re.ASCII)
"""A day as ISO 8601 writes it, without a time."""


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "backstop audit h100-worked",
            "backstop audit h100-worked --json > audit.jsonl",
            "backstop audit h100-worked --archive --verify",
            "backstop audit --fleet",
            "backstop audit h100-worked --since 7d --kind command --kind hold",
            "backstop audit h100-worked --archive --actor tpm --until 2026-11-30 -o wide",
        ),
        rich_help_panel=LOOK,
    )(audit)


def audit(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER", help="The cluster; or none, with --fleet.", show_default=False, callback=named_or_all
        ),
    ] = "",
    fleet: Annotated[bool, typer.Option("--fleet", help="The fleet rollouts themselves, from the archive.")] = False,
    archive: Annotated[
        bool, typer.Option("--archive", help="From the ledger's archive: refused commands and ended rollouts too.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only check that the archive's hash chain is whole; 1 if it is not.")
    ] = False,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From then on: 7d ago, or a day or time such as 2026-11-01T12:00Z.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Before then, in the same forms; a day is meant to its end.")
    ] = "",
    actor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only what this actor did (backstop: what came by itself); * for anything. May be repeated. Who "
            "asks is told by BACKSTOP_ACTOR here.",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Only command, transition, effect, notice, hold, guard or plan. May be repeated.",
        ),
    ] = None,
    output: Output = None,
    sort: Sort = "",
    filters: Filter = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line.")] = False,
) -> None:
    """Tell what happened to a cluster: who did what, when, and why.

    Where something chooses among the entries, it is said how many there are in all.
    """
    from models.fleet.state import FLEET

    if fleet and cluster:
        raise BadInput(f"CLUSTER {cluster!r} is given beside --fleet: give one of them")
    cluster = FLEET if fleet else needed(cluster)
    how, person = listing(output, as_json, sort, filters), who(os.environ.get("BACKSTOP_ACTOR", ""))
    wanted = _wanted(since, until, actor or (), kind or ())
    if verify:
        how.of_one("--verify")
        _verify(cluster, person, how)
        return
    lines = _archived(cluster, person) if archive or fleet else _history(cluster, person)
    _answer(lines, wanted, how)


@dataclass(frozen=True)
class _Wanted:
    """Which entries; what is empty leaves all. `since` counts, `until` does not."""

    since: datetime | None
    until: datetime | None
    actors: tuple[str, ...]
    kinds: tuple[str, ...]

    def holds(self, line: AuditLine | ArchiveLine) -> bool:
        return (
            (self.since is None or self.since <= line.at)
            and (self.until is None or line.at < self.until)
            and (not self.actors or any(like(actor, line.actor) for actor in self.actors))
            and (not self.kinds or line.kind in self.kinds)
        )


def _wanted(since: str, until: str, actors: Sequence[str], kinds: Sequence[str]) -> _Wanted:
    """Errors: BadInput naming the option and the value."""
    from models.audit import AuditKind

    now = datetime.now(UTC)
    begin = moment_of("--since", since, now, back=True) if since else None
    end = moment_of("--until", until, now, back=True) if until else None
    if end is not None and _DAY.fullmatch(until):
        try:
            end += timedelta(days=1)
        except OverflowError:
            raise BadInput(f"--until {until} has no day after it: leave it out") from None
    if begin is not None and end is not None and end <= begin:
        raise BadInput(f"--until {until} is not after --since {since}")
    for kind in kinds:
        if kind not in set(AuditKind):
            raise BadInput(f"--kind must be one of {', '.join(AuditKind)}, not {kind!r}")
    return _Wanted(begin, end, tuple(actors), tuple(kinds))


def _answer(found: Sequence[AuditLine] | Sequence[ArchiveLine], wanted: _Wanted, how: Listing) -> None:
    """What is wanted of them, in its form; programs are told on standard error how many were left out."""
    from cli.answers import ArchiveLine, AuditLine
    from cli.output import show, show_json_line, show_yaml

    kind: type[Any] = ArchiveLine if found and isinstance(found[0], ArchiveLine) else AuditLine
    lines = how.rows(filter(wanted.holds, found), kind)
    few = f"{len(lines):,} of {len(found):,} entries" if len(lines) < len(found) else ""
    match how.form:
        case Form.NAME:
            raise BadInput("-o name: what happened has no name")
        case Form.JSON:
            for each in lines:
                show_json_line(each.as_json())
        case Form.YAML:
            show_yaml(*(each.as_json() for each in lines))
        case _:
            show(*_time_line(lines, few), wide=how.form is Form.WIDE)
            return
    if few:
        sys.stderr.write(f"{few}\n")


def _history(cluster: str, actor: str) -> list[AuditLine]:
    from cli.answers import AuditLine

    records = ask(actor, lambda door: door.audit(cluster))
    return [AuditLine.model_validate({**r.model_dump(), "cluster": cluster}) for r in records]


def _archived(cluster: str, actor: str) -> list[ArchiveLine]:
    from cli.answers import ArchiveLine

    rows, _ = ask(actor, lambda door: door.archived(cluster))
    return [
        ArchiveLine.model_validate(
            {**r.entry.model_dump(), "seq": r.seq, "previous_hash": r.previous_hash, "hash": r.hash}
        )
        for r in rows
    ]


def tell_bringups(cluster: str, person: str, *, as_json: bool) -> None:
    """What is archived of the cluster's bring-ups."""
    from models.bringup.state import bringup_workflow_id

    lines = [each for each in _archived(cluster, person) if each.rollout == bringup_workflow_id(cluster)]
    if not lines:
        raise Refusal(f"nothing is archived of a bring-up of {cluster}")
    _answer(lines, _Wanted(None, None, (), ()), listing(None, as_json))


def _time_line(lines: Iterable[AuditLine | ArchiveLine], few: str) -> list[RenderableType]:
    from cli.output import line, moment, row, table

    what_happened = table("=TIME", "=KIND", "ACTOR", "~WHAT", "~WHY")
    for each in lines:
        style = "yellow" if each.refused else "bold" if each.kind == "transition" else ""
        row(what_happened, moment(each.at), each.kind, each.actor, each.text, each.reason or None, style=style)
    if what_happened.row_count:
        return [what_happened, *([line(f"{few}.")] if few else [])]
    return [line(f"{few} is like that." if few else "Nothing has happened to it yet.")]


def _verify(cluster: str, actor: str, how: Listing) -> None:
    from cli.answers import ChainAnswer
    from cli.output import line
    from models.audit import broken_links

    rows, head = ask(actor, lambda door: door.archived(cluster))
    if not rows and head is None:
        raise Refusal(f"nothing is archived of {cluster}: there is no chain to verify")
    broken = broken_links(rows, head)
    answer = ChainAnswer(
        cluster=cluster,
        rows=len(rows),
        head=None if head is None else head.hash,
        whole=not broken,
        broken=tuple(broken),
    )
    said = [line(f"The archive of {cluster} is whole: {len(rows)} rows, chain ends at {answer.head}.")]
    if broken:
        said = [line((f"The archive of {cluster} is broken:", "red")), *(line(f"  {text}") for text in broken)]
    how.tell(lambda: answer, lambda: said, None)
    _fail_unless_whole(answer)


def _fail_unless_whole(answer: ChainAnswer) -> None:
    if not answer.whole:
        raise typer.Exit(1)
