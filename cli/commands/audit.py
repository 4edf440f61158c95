"""`backstop audit`: the history of a cluster, from its workflows or from the ledger's archive."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.lazy import command
from cli.list_options import Form, Listing, listed, matches, read_listing
from cli.options import LOOK, actor_of, arg, check_name_or_all, flag, needed_cluster, opt
from cli.session import ask
from cli.time_options import moment_of, shift_time
from models.errors import BadInput, Refusal
from models.texts import count_text, verb_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.json_answers_audit import ArchiveLine, AuditLine, ChainAnswer
    from client.backstop import Backstop
    from models.audit_chain import ChainedEntry, ChainHead
    from models.seals import Seal


_DAY = re.compile(r"\d{8}|\d{4}-\d\d-\d\d|\d{4}-W\d\d-\d|\d{4}W\d{3}", re.ASCII)
"""A day as ISO 8601 writes it, without a time."""


@command(
    LOOK,
    "backstop audit h100-worked",
    "backstop audit h100-worked --verify",
    "backstop audit --verify --seals /var/lib/backstop/seals/seals.txt",
    "backstop audit --fleet",
    "backstop audit h100-worked --since 7d --kind command --kind hold",
)
@listed
def audit(
    cluster: Annotated[
        str,
        arg(
            "CLUSTER",
            "The cluster. Leave it out with --fleet, or with --seals to check every archive.",
            show_default=False,
            callback=check_name_or_all,
        ),
    ] = "",
    fleet: Annotated[
        bool, flag("--fleet", "Show the archive of the fleet rollouts themselves, not of their clusters.")
    ] = False,
    archive: Annotated[
        bool, flag("--archive", "Read the ledger's archive, which also keeps refused commands and ended rollouts.")
    ] = False,
    verify: Annotated[
        bool, flag("--verify", "Only check that the archive's hash chain is intact; exit with 1 if not.")
    ] = False,
    seals: Annotated[
        str,
        opt("WHERE", "With --verify: check against these seals, a file or Git repository (docs/seals.md).", "--seals"),
    ] = "",
    seal_key: Annotated[
        list[str] | None, opt("KEY", "A public key of the seals: a file, or the key's text. Repeatable.", "--seal-key")
    ] = None,
    since: Annotated[
        str, opt("TIME", "From this time on: an age such as 7d, or a day or time such as 2026-11-01T12:00Z.")
    ] = "",
    until: Annotated[str, opt("TIME", "Up to this time, written as for --since. A day counts as a whole.")] = "",
    actor: Annotated[
        list[str] | None,
        opt(
            "NAME",
            "Only what this actor did; * matches anything. Repeatable. Here --actor is a filter, not your own name "
            "(BACKSTOP_ACTOR).",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        opt("KIND", "Only entries of this kind: command, transition, effect, notice, hold, guard or plan. Repeatable."),
    ] = None,
    *,
    how: Listing,
) -> None:
    """Show what happened to a cluster: who did what, when, and why.

    CLUSTER can also be '(fleet)' (as --fleet), '(access)' or '(milestones)', which have their own records in the
    ledger's archive.
    """
    from models.fleet.state import FLEET

    if fleet and cluster:
        raise BadInput(f"CLUSTER {cluster!r} is given together with --fleet: give one of them")
    if (seals and not verify) or (seal_key and not seals):
        raise BadInput("--seals needs --verify, and --seal-key needs --seals")
    if verify and not (cluster or fleet or seals):
        raise BadInput("--verify needs a CLUSTER, or --seals to check every archive")
    cluster = FLEET if fleet else cluster if seals else needed_cluster(cluster)
    person = actor_of(os.environ.get("BACKSTOP_ACTOR", ""))
    wanted = _read_filter(since, until, actor or (), kind or ())
    if verify:
        how.of_one("--verify")
        if seals:
            _verify_seals(cluster, seals, seal_key or (), person, how)
            return
        _verify(cluster, person, how)
        return
    lines = _read_archive(cluster, person) if archive or _has_no_cluster(cluster) else _history(cluster, person)
    _answer(lines, wanted, how)


@dataclass(frozen=True)
class _Wanted:
    """A filter of entries; an empty field filters nothing. `since` is included, `until` is not."""

    since: datetime | None
    until: datetime | None
    actors: tuple[str, ...]
    kinds: tuple[str, ...]

    def holds(self, line: AuditLine | ArchiveLine) -> bool:
        return (
            (self.since is None or self.since <= line.at)
            and (self.until is None or line.at < self.until)
            and (not self.actors or any(matches(actor, line.actor) for actor in self.actors))
            and (not self.kinds or line.kind in self.kinds)
        )


def _read_filter(since: str, until: str, actors: Sequence[str], kinds: Sequence[str]) -> _Wanted:
    """Read the filter's options. Errors: BadInput naming the option and the value."""
    from models.audit_chain import AuditKind

    now = datetime.now(UTC)
    begin = moment_of("--since", since, now, back=True) if since else None
    end = moment_of("--until", until, now, back=True) if until else None
    if end is not None and _DAY.fullmatch(until):
        end = shift_time("--until", until, end, timedelta(days=1))
    if begin is not None and end is not None and end <= begin:
        raise BadInput(f"--until {until} is not after --since {since}")
    for kind in kinds:
        if kind not in set(AuditKind):
            raise BadInput(f"--kind must be one of {', '.join(AuditKind)}, not {kind!r}")
    return _Wanted(begin, end, tuple(actors), tuple(kinds))


def _answer(every_line: Sequence[AuditLine] | Sequence[ArchiveLine], wanted: _Wanted, how: Listing) -> None:
    """Print the lines that pass the filter, in the chosen form; programs read on stderr how many were left out."""
    from cli.json_answers_audit import ArchiveLine, AuditLine
    from cli.output import show, show_json_line, show_yaml
    from views.words import none_of

    kind: type[Any] = ArchiveLine if every_line and isinstance(every_line[0], ArchiveLine) else AuditLine
    lines = how.rows(filter(wanted.holds, every_line), kind)
    few = f"{len(lines):,} of {count_text(len(every_line), 'entry')}" if len(lines) < len(every_line) else ""
    match how.form:
        case Form.NAME:
            raise BadInput("-o name: audit entries have no names; choose another form")
        case Form.JSON:
            for each in lines:
                show_json_line(each.as_json())
        case Form.YAML:
            show_yaml(*(each.as_json() for each in lines))
        case _:
            shown = _time_line(lines, few) if lines or not few else [none_of(len(every_line), "entry")]
            show(*shown, wide=how.form is Form.WIDE)
            return
    if few:
        sys.stderr.write(f"{few}\n")


def _history(cluster: str, actor: str) -> list[AuditLine]:
    from cli.json_answers_audit import AuditLine
    from models.audit_chain import proof_of

    try:
        records = ask(actor, lambda door: door.audit(cluster))
    except Refusal:
        _refuse_unknown(cluster, actor)
        raise
    return [
        AuditLine.model_validate({**record.model_dump(), "cluster": cluster, "proof": proof_of(record.data)})
        for record in records
    ]


def _read_archive(cluster: str, actor: str) -> list[ArchiveLine]:
    from cli.json_answers_audit import ArchiveLine
    from models.audit_chain import proof_of

    rows, head = ask(actor, lambda door: door.read_archive(cluster))
    if head is None:
        _refuse_unknown(cluster, actor)
    return [
        ArchiveLine.model_validate(
            {
                **row.entry.model_dump(),
                "seq": row.seq,
                "previous_hash": row.previous_hash,
                "hash": row.hash,
                "proof": proof_of(row.entry.data),
            }
        )
        for row in rows
    ]


def _has_no_cluster(name: str) -> bool:
    """Return whether the chain is the ledger's own, such as (fleet) or (access): it has an archive and no workflow."""
    return name.startswith("(") and name.endswith(")")


def _refuse_unknown(cluster: str, actor: str) -> None:
    """Refuse a cluster that has no archive and is not in the ledger. Errors: BadInput."""
    from models.questions import Archived, FactsOf

    if _has_no_cluster(cluster):
        return
    page = ask(actor, lambda door: door.ask(Archived(cluster=cluster, limit=1)))
    if page.head is None:
        ask(actor, lambda door: door.ask(FactsOf(cluster=cluster)))


def tell_bringups(cluster: str, person: str, *, as_json: bool) -> None:
    """Print the archive of the cluster's bring-ups."""
    from models.temporal_names import bringup_workflow_id

    lines = [each for each in _read_archive(cluster, person) if each.rollout == bringup_workflow_id(cluster)]
    if not lines:
        raise Refusal(f"the archive has no bring-up of {cluster}")
    _answer(lines, _Wanted(None, None, (), ()), read_listing(as_json=as_json))


def _time_line(lines: Iterable[AuditLine | ArchiveLine], few: str) -> list[RenderableType]:
    from models.audit_chain import text_with_subject
    from views.words import line, moment, row, table

    what_happened = table("=TIME", "=KIND", "ACTOR", "~WHAT", "~WHY")
    for each in lines:
        style = "yellow" if each.refused else "bold" if each.kind == "transition" else ""
        proof, _, note = each.proof.partition(", ")
        who = f"{each.actor}, {proof}" if proof else each.actor
        what = text_with_subject(each.text, each.actor, each.data)
        text = f"{what} ({note})" if note else what
        row(what_happened, moment(each.at), each.kind, who, text, each.reason or None, style=style)
    if what_happened.row_count:
        return [what_happened, *([line(f"{few}.")] if few else [])]
    return [line("The history has no entry yet.")]


def _verify(cluster: str, actor: str, how: Listing) -> None:
    rows, head = ask(actor, lambda door: door.read_archive(cluster))
    if not rows and head is None:
        _refuse_unknown(cluster, actor)
        raise Refusal(f"the archive has nothing about {cluster}: there is no chain to verify")
    answer = _chain_of(cluster, rows, head)
    how.tell(lambda: answer, lambda: _chain_parts(answer), None)
    _fail_unless_whole(answer.whole)


def _chain_of(
    cluster: str, rows: Sequence[ChainedEntry], head: ChainHead | None, seals: Sequence[Seal] = ()
) -> ChainAnswer:
    from cli.json_answers_audit import ChainAnswer
    from models.audit_chain import broken_links
    from models.seals import against_seals

    broken, sealed = broken_links(rows, head), against_seals(cluster, rows, seals)
    broken += [sealed.differs] if sealed.differs else []
    return ChainAnswer(
        cluster=cluster,
        rows=len(rows),
        head=None if head is None else head.hash,
        whole=not broken,
        broken=tuple(broken),
        seal=sealed.number or None,
        sealed_at=sealed.at,
        sealed_rows=sealed.rows,
    )


def _chain_parts(answer: ChainAnswer, seals: Sequence[Seal] | None = None) -> list[RenderableType]:
    from views.words import count, line

    if answer.broken:
        return [
            line((f"The archive of {answer.cluster} is broken:", "red")),
            *(line(f"  {text}") for text in answer.broken),
        ]
    parts: list[RenderableType] = [
        line(f"The archive of {answer.cluster} is whole: {count(answer.rows, 'row')}, chain ends at {answer.head}.")
    ]
    if seals is None:
        return parts
    if answer.seal is None:
        return [*parts, line("No seal covers this archive, so nothing proves that nobody rewrote it.")]
    return [
        *parts,
        line(f"The archive matches its seals, up to SEAL {answer.seal} of {answer.sealed_at:%Y-%m-%d %H:%M:%SZ}."),
        *_unsealed_parts([answer]),
    ]


def _unsealed_parts(chains: Sequence[ChainAnswer]) -> list[RenderableType]:
    """Say how many rows are later than their seal, and what that means; nothing if none are."""
    from views.words import count, line

    later = sum(chain.rows - chain.sealed_rows for chain in chains)
    if not later:
        return []
    return [
        line(f"No seal covers the last {count(later, 'row')} yet: until the next seal, a rewrite there goes unnoticed.")
    ]


def _verify_seals(cluster: str, where: str, keys: Sequence[str], actor: str, how: Listing) -> None:
    from cli.json_answers_audit import ChainsAnswer
    from client.inputs.seals import read_seals
    from views.words import count, line

    seals = read_seals(where, keys)
    if cluster:
        rows, head = ask(actor, lambda door: door.read_archive(cluster))
        answer = _chain_of(cluster, rows, head, seals)
        how.tell(lambda: answer, lambda: _chain_parts(answer, seals), None)
        _fail_unless_whole(answer.whole)
        return
    chains = tuple(_chain_of(name, *pages, seals) for name, pages in ask(actor, partial(_chains, seals)))
    last = seals[-1] if seals else None
    every = ChainsAnswer(
        seal=len(seals),
        sealed_at=None if last is None else last.at,
        whole=all(chain.whole for chain in chains),
        chains=chains,
    )
    broken = [part for chain in chains if not chain.whole for part in _chain_parts(chain, seals)]
    upto = "no seal" if last is None else f"SEAL {last.number} of {last.at:%Y-%m-%d %H:%M:%SZ}"
    archives, length = count(len(chains), "archive"), count(sum(c.rows for c in chains), "row")
    summary = [line(f"{archives} with {length} {verb_of(len(chains))} whole up to {upto}."), *_unsealed_parts(chains)]
    how.tell(lambda: every, lambda: broken or summary, None)
    _fail_unless_whole(every.whole)


async def _chains(
    seals: Sequence[Seal], door: Backstop
) -> list[tuple[str, tuple[list[ChainedEntry], ChainHead | None]]]:
    from models.seals import sealed_heads

    described = await door.describe_clusters()
    names = {*sealed_heads(seals), *(row.name if row.cluster is None else row.cluster.name for row in described)}
    return [(name, await door.read_archive(name)) for name in sorted(names)]


def _fail_unless_whole(whole: bool) -> None:
    if not whole:
        raise typer.Exit(1)
