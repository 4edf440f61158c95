"""The audit of one cluster, of the fleet rollouts or of access, with filters in the address, and as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlencode

from models.access.access_versions import ACCESS_CHAIN
from models.audit_chain import AuditKind, ChainedEntry, proof_of
from models.errors import BackstopError, BadInput
from models.fleet.state import FLEET
from models.questions import Archived, ArchivePage
from views.csv_out import csv_text
from web.console.forms import day_behind, is_like
from web.console.visit import Download, Page, Visit
from web.console.visit_door import door_of
from web.failures import not_found

_SHOWN = 1_000
"""The most rows of a page, the newest; the file has all."""
_FIELDS = ("cluster", "actor", "kind", "since", "refused")
_HEAD = ("seq", "at", "kind", "actor", "proof", "text", "reason", "refused", "rollout", "previous_hash", "hash")
_CHAINS = {FLEET: "the fleet rollouts", ACCESS_CHAIN: "roles and tokens"}


class Wanted(NamedTuple):
    """The filters in the address; an empty one filters nothing."""

    cluster: str
    actor: str
    kind: str
    since: str
    refused: str
    begin: datetime | None = None

    @property
    def address(self) -> str:
        """The address of the same page."""
        return urlencode({name: value for name in _FIELDS if (value := getattr(self, name))})

    def holds(self, row: ChainedEntry) -> bool:
        entry = row.entry
        return (
            (self.begin is None or self.begin <= entry.at)
            and is_like(entry.actor, self.actor)
            and (not self.kind or entry.kind == self.kind)
            and (self.refused != "only" or entry.refused)
            and (self.refused != "none" or not entry.refused)
        )


async def audit(visit: Visit) -> Page | Download:
    if len(visit.path) > 1:
        raise not_found("there is no such page of the audit")
    cluster, actor, kind, since, refused = (visit.query.get(name, "").strip()[:200] for name in _FIELDS)
    wanted, failed = Wanted(cluster or FLEET, actor, kind, since, refused), ""
    try:
        wanted = _read_filters(wanted, visit.now)
    except BackstopError as error:
        failed = error.message
    if visit.query.get("format") == "csv" and not failed:
        rows, _ = await door_of(visit).read_archive(wanted.cluster)
        return Download(f"audit-{wanted.cluster}.csv", "text/csv", csv_text(_table(filter(wanted.holds, rows))))
    page = ArchivePage(rows=(), head=None)
    if not failed:
        page = await visit.ask(Archived(cluster=wanted.cluster, limit=_SHOWN, newest=True))
    entries, head = page.rows, page.head
    values = {
        "asked": wanted,
        "chain": _CHAINS.get(wanted.cluster, wanted.cluster),
        "fleet_chain": FLEET,
        "access_chain": ACCESS_CHAIN,
        "kinds": [kind.value for kind in AuditKind],
        "entries": [_line(row, page.seal_of(row.seq)) for row in reversed(entries) if wanted.holds(row)],
        "looked": len(entries),
        "all": 0 if head is None else head.length,
        "head": "" if head is None else head.hash,
        "failed": failed,
    }
    return Page("audit.html", f"Audit of {values['chain']}", values, 400 if failed else 200)


def _read_filters(wanted: Wanted, now: datetime) -> Wanted:
    """Read the filters. Errors: BadInput naming the field and the value."""
    if wanted.kind and wanted.kind not in set(AuditKind):
        raise BadInput(f"Kind must be one of {', '.join(AuditKind)}, not {wanted.kind!r}")
    return wanted._replace(begin=day_behind("Since", wanted.since, now)) if wanted.since else wanted


def _line(row: ChainedEntry, seal: int | None) -> dict[str, object]:
    return {"seal": seal, "seq": row.seq, "entry": row.entry, "proof": proof_of(row.entry.data), "hash": row.hash}


def _table(rows: Iterator[ChainedEntry]) -> Iterator[Sequence[object]]:
    yield _HEAD
    for row in rows:
        e = row.entry
        what = (e.kind.value, e.actor, proof_of(e.data), e.text, e.reason, "yes" if e.refused else "no", e.rollout)
        yield (row.seq, e.at.isoformat(), *what, row.previous_hash, row.hash)
