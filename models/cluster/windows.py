"""Declared windows (maintenance, SEVs, freezes), and how much of a shortage they explain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from models.base import Count, Documented, GpuCount, Model, Name, PositiveCount, Text, Time
from models.cluster.island import Island
from models.texts import gpus_text


class WindowKind(StrEnum):
    MAINTENANCE = "maintenance"
    SEV = "sev"
    FREEZE = "freeze"


class Foretold(Model):
    """Quotas that will lose their backing when a window begins. `loses`, `lacks`: GPUs by team.

    `lacks` is all that will have no healthy GPU behind it then, including what has none before.
    """

    kind: WindowKind
    starts: Time
    ends: Time
    reason: str
    loses: dict[str, Count]
    lacks: dict[str, Count]


class Window(Documented):
    """A declared absence of capacity, or a time in which nothing may change.

    `islands` None: the whole cluster. `gpus` None: all GPUs of those islands may be gone.
    """

    kind: WindowKind
    """maintenance and sev explain a shortage and hold gates; freeze only holds gates."""
    starts: Time
    """The time when the window begins."""
    ends: Time
    """The time when the window ends; after starts."""
    reason: Text = Field(min_length=1, max_length=500)
    """The reason, as a sentence for people."""
    islands: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """The islands that the window covers. Default: all islands."""
    gpus: GpuCount | None = None
    """The GPUs that may be gone. Default: all GPUs of those islands."""

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.ends <= self.starts:
            raise ValueError(f"ends {self.ends.isoformat()} is not after starts {self.starts.isoformat()}")
        return self

    @property
    def in_order(self) -> Self:
        """The window with its islands in the ledger's order."""
        return self if self.islands is None else self.but(islands=tuple(sorted(self.islands)))


def without_absences(islands: Sequence[Island], windows: Sequence[Window], now: datetime) -> tuple[Island, ...]:
    """The islands as they would be without declared absences: what a window explains counts as healthy.

    Only what exceeds a declared window or SEV counts towards a breach.
    """
    healthy = {island.name: island.healthy_gpus for island in islands}
    for window in active(windows, now):
        gone = {island.name: island.total_gpus - healthy[island.name] for island in islands}
        for name, back in covered_gpus(window, gone).items():
            healthy[name] += back
    return tuple(
        island.model_copy(update={"healthy_gpus": healthy[island.name], "block_gpus": None})
        if healthy[island.name] > island.healthy_gpus
        else island
        for island in islands
    )


def covered_gpus(window: Window, room: Mapping[str, int]) -> dict[str, int]:
    """Return the GPUs by island that the window covers, at most its `room`, the first islands by name first."""
    if window.kind is WindowKind.FREEZE:
        return {}
    left, gone = window.gpus, {}
    for name in sorted(window.islands or room):
        if name in room:
            gone[name] = room[name] if left is None else min(room[name], left)
            left = None if left is None else left - gone[name]
    return gone


def active(windows: Sequence[Window], now: datetime) -> tuple[Window, ...]:
    """Return the windows that have begun and not ended."""
    return tuple(window for window in windows if window.starts <= now < window.ends)


MOST_WINDOWS, WINDOWS_BYTES = 200, 65_536
"""The most windows that a rollout keeps from its last look, and the most bytes that they take as JSON."""


def nearest(windows: Sequence[Window], now: datetime) -> tuple[Window, ...]:
    """Return as many windows as a rollout carries, in their order: the longest under way, then the next to begin.

    At the end of each it looks again, and sees what was left out.
    """
    under_way = sorted((w for w in windows if w.starts <= now), key=lambda w: w.ends, reverse=True)
    to_come = sorted((w for w in windows if w.starts > now), key=lambda w: w.starts)
    kept: set[int] = set()
    room = WINDOWS_BYTES
    for window in (*under_way, *to_come)[:MOST_WINDOWS]:
        room -= len(window.model_dump_json().encode())
        if room < 0 and kept:
            break
        kept.add(id(window))
    return tuple(w for w in windows if id(w) in kept)


FILE = ""
"""The source of windows that a fleet file declares: an import of the cluster replaces them."""
HOLD, FLEET_HOLD = "hold ", "fleet hold "
"""The prefixes of the source of a `backstop hold`: of named clusters, and of all clusters, later ones included."""


def windows_alike(entries: Iterable[Entry]) -> dict[Window, list[Entry]]:
    """Group declarations for several clusters, by the window without its GPUs and islands."""
    together: dict[Window, list[Entry]] = {}
    for entry in entries:
        together.setdefault(entry.window.model_copy(update={"gpus": None, "islands": None}), []).append(entry)
    return together


def hold_name(source: str) -> str:
    """Return the name of a declaration for `calendar end --hold`; empty: a fleet file's, which has no name."""
    return source.removeprefix("fleet ").removeprefix(HOLD)


class Declared(Model):
    """Windows that one source declares: they replace all that it declared before, for any cluster.

    `source`: such as `hold 3f2a91`, or `ics` and an iCalendar event's UID. Without windows it takes back what it
    declared.
    """

    source: Text = Field(min_length=1, max_length=300)
    windows: tuple[tuple[Name, Window], ...] = ()
    """The windows, each with its cluster."""


class Entry(Model):
    """A window in the ledger."""

    id: PositiveCount
    cluster: Name
    window: Window
    source: str
    declared_by: str


def gpus_taken(window: Window) -> int | str | None:
    """Return the GPUs that the window takes, for a table: a number, all, or None for a freeze."""
    if window.kind is WindowKind.FREEZE:
        return None
    return "all" if window.gpus is None else window.gpus


def span_text(window: Window, clock: str = "%H:%M") -> str:
    """Return what is declared, and from when to when: for people and the archive. `clock`: the format of times."""
    what = "" if window.gpus is None else f" of {gpus_text(window.gpus)}"
    where = "" if window.islands is None else f" in {', '.join(window.islands)}"
    return f"{window.kind}{what}{where} from {window.starts:%Y-%m-%d {clock}Z} until {window.ends:%Y-%m-%d {clock}Z}"


class Declaration(Model):
    """The outcome: the windows in force, those of them that are new, and those taken back."""

    stand: tuple[Entry, ...]
    new: tuple[Entry, ...]
    gone: tuple[Entry, ...]
