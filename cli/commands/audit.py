"""`backstop audit`: what happened, from workflow history or from the ledger's archive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import LOOK, Actor, examples, named_or_all, needed, who
from cli.session import ask
from models.errors import BadInput, Refusal

if TYPE_CHECKING:
    from cli.answers import ArchiveLine, AuditLine, ChainAnswer


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "backstop audit h100-worked",
            "backstop audit h100-worked --json > audit.jsonl",
            "backstop audit h100-worked --archive --verify",
            "backstop audit --fleet",
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line.")] = False,
    actor: Actor = "",
) -> None:
    """Tell what happened to a cluster: who did what, when, and why."""
    from cli.output import show_json_line
    from models.fleet.state import FLEET

    if fleet and cluster:
        raise BadInput(f"CLUSTER {cluster!r} is given beside --fleet: give one of them")
    cluster = FLEET if fleet else needed(cluster)
    if verify:
        _verify(cluster, who(actor), as_json)
        return
    lines = _archived(cluster, who(actor)) if archive or fleet else _history(cluster, who(actor))
    if as_json:
        for each in lines:
            show_json_line(each.as_json())
    else:
        _time_line(lines)


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


def _time_line(lines: Iterable[AuditLine | ArchiveLine]) -> None:
    from cli.output import line, moment, row, show, table

    what_happened = table("=TIME", "=KIND", "ACTOR", "~WHAT", "~WHY")
    for each in lines:
        style = "yellow" if each.refused else "bold" if each.kind == "transition" else ""
        row(what_happened, moment(each.at), each.kind, each.actor, each.text, each.reason or None, style=style)
    show(what_happened if what_happened.row_count else line("Nothing has happened to it yet."))


def _verify(cluster: str, actor: str, as_json: bool) -> None:
    from cli.answers import ChainAnswer
    from cli.output import line, show, show_json
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
    if as_json:
        show_json(answer.as_json())
    elif answer.whole:
        show(line(f"The archive of {cluster} is whole: {len(rows)} rows, chain ends at {answer.head}."))
    else:
        show(line((f"The archive of {cluster} is broken:", "red")), *(line(f"  {text}") for text in broken))
    _fail_unless_whole(answer)


def _fail_unless_whole(answer: ChainAnswer) -> None:
    if not answer.whole:
        raise typer.Exit(1)
