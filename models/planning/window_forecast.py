"""Declared windows as the ledger keeps them, and what they will do to quotas before they begin.

Capacity in maintenance is planned absence: it is not healthy while that lasts. Nothing breaches because of it
(models/rollout/guard.py), but a quota that loses its backing has to be told in time. Source: DESIGN.md, "Guard and
rollback".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import Field

from models.base import Count, Model, Name, PositiveCount, Text, Time
from models.cluster.fleet_file import Window, WindowKind
from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot, filled
from models.planning.backing import back
from models.planning.cut_reasons import gpus_text
from models.rollout.guard import active, covered, explained

FILE = ""
"""The source of what a fleet file declares: an import of the cluster replaces it."""


class Declared(Model):
    """Windows that one source declares: they take the place of all that it declared before, for any cluster.

    `source`: such as `hold 3f2a91`, or `ics` and an iCalendar event's UID. Without windows it takes back what it
    declared.
    """

    source: Text = Field(min_length=1, max_length=300)
    windows: tuple[tuple[Name, Window], ...] = ()
    """Each with its cluster."""


class Entry(Model):
    """A window in the ledger."""

    id: PositiveCount
    cluster: Name
    window: Window
    source: str
    declared_by: str


def span_text(window: Window) -> str:
    """What is declared, and from when to when: for people and the archive."""
    what = "" if window.gpus is None else f" of {gpus_text(window.gpus)}"
    where = "" if window.islands is None else f" in {', '.join(window.islands)}"
    return f"{window.kind}{what}{where} from {window.starts:%Y-%m-%d %H:%MZ} until {window.ends:%Y-%m-%d %H:%MZ}"


class Declaration(Model):
    """What became of it: the windows that stand, which of them are new, and what was taken back."""

    stand: tuple[Entry, ...]
    new: tuple[Entry, ...]
    gone: tuple[Entry, ...]


class Foretold(Model):
    """Quotas that will lose their backing when a window begins. `loses`, `lacks`: GPUs by team.

    `lacks` is all that will have nothing behind it then, what has nothing today included.
    """

    kind: WindowKind
    starts: Time
    ends: Time
    reason: str
    loses: dict[str, Count]
    lacks: dict[str, Count]


def foretold(
    cluster: str, quotas: Sequence[Quota], islands: Sequence[Island], windows: Sequence[Window], now: datetime
) -> tuple[Foretold, ...]:
    """What the windows ahead will take from these quotas, if health stays as it is otherwise; the next one first.

    What is absent now by a window that will be over counts as back. Where a window takes a number of GPUs from several
    islands, the first ones by name give them. Quotas that lack as much before it begins are left out.
    """
    islands = filled(quotas, islands)
    whole = explained(islands, windows, now)
    before = _shortage(cluster, quotas, islands)
    told = []
    for window in sorted(windows, key=lambda w: (w.starts, w.kind, w.reason)):
        if window.starts <= now or window.kind is WindowKind.FREEZE:
            continue
        lacks = _shortage(cluster, quotas, without(whole, active(windows, window.starts)))
        loses = {team: gpus - before.get(team, 0) for team, gpus in lacks.items() if gpus > before.get(team, 0)}
        if loses:
            told.append(
                Foretold(
                    kind=window.kind,
                    starts=window.starts,
                    ends=window.ends,
                    reason=window.reason,
                    loses=loses,
                    lacks={team: lacks[team] for team in loses},
                )
            )
    return tuple(told)


def without(islands: Sequence[Island], windows: Sequence[Window]) -> tuple[Island, ...]:
    """The islands while these windows last."""
    left = {i.name: i.healthy_gpus for i in islands}
    for window in windows:
        for name, gone in covered(window, left).items():
            left[name] -= gone
    return tuple(i if left[i.name] == i.healthy_gpus else _with_healthy(i, left[i.name]) for i in islands)


def _with_healthy(island: Island, healthy: int) -> Island:
    blocks = None if island.block_gpus is None else min(island.block_gpus, healthy)
    return island.model_copy(update={"healthy_gpus": healthy, "block_gpus": blocks})


def _shortage(cluster: str, quotas: Sequence[Quota], islands: tuple[Island, ...]) -> dict[str, int]:
    return dict(back(Snapshot(cluster=cluster, islands=islands, quotas=tuple(quotas))).shortage)
