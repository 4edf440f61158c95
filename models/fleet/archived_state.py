"""The state of a fleet rollout as its archive tells it, for another one that takes over once Temporal has lost it.

Theory of operation. The fleet rollout's state lives in its workflow; the ledger has its archive, with every command,
plan, start and transition and their data. `replay_fleet` replays it from the first entry to the last. Events that were
not archived yet are lost, and so is data that an earlier build left out; `unknown` lists it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field, ValidationError

from models.audit_chain import AuditEntry, AuditKind
from models.base import Model, Name, Time
from models.fleet.pace_changes import change_pace
from models.fleet.state import FleetStage, Pace, Wave
from models.rollout.stuck import LAUNCH


class KeptFleet(Model):
    """A fleet rollout as its archive tells it. Members are keyed by cluster."""

    fleet: Name
    owner: str
    shadow: bool = False
    launched_at: Time
    launched_by: str = ""
    stage: FleetStage = FleetStage.PLANNED
    pace: Pace | None = None
    """None: an earlier build did not archive the pace."""
    policy: dict[str, Any] = Field(default_factory=dict)
    plan_hash: str = ""
    approved_by: str = ""
    wave: Wave = Wave.PILOT
    """The last wave in which clusters were started."""
    through_at: Time | None = None
    """Time at which the last cluster of `wave` was through; None: some are not."""
    members: dict[str, Wave] = Field(default_factory=dict)
    """Waves by cluster, from the approved plan and later moves by people."""
    unplaced: tuple[Name, ...] = ()
    """Clusters of the approved plan whose wave the ledger lacks, because an earlier build did not archive it."""
    moved: tuple[Name, ...] = ()
    """Clusters whose wave a person chose."""
    skipped: tuple[Name, ...] = ()
    started: tuple[Name, ...] = ()
    held: tuple[str, ...] = ()
    """Ids of the holds in force."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Facts that nobody can know any more, one sentence each."""
        sentences = []
        if self.pace is None:
            sentences.append("its pace and its policy: an earlier build did not archive them (give --pace, --policy)")
        if self.unplaced:
            sentences.append("its clusters' waves: an earlier build did not archive them, so today's plans decide")
        return (*sentences, "the failures that its breaker (`max_failed`) counted: it counts from zero again")


def replay_fleet(entries: Iterable[AuditEntry], planned: Iterable[str] = ()) -> KeptFleet | None:
    """Replay the entries of one fleet rollout, in their order; None if its launch is not among them.

    `planned`: the clusters with an approved plan in the ledger, used if the archive does not name the members.
    """
    kept: KeptFleet | None = None
    for entry in entries:
        if entry.refused:
            continue
        kept = _start_from_launch(entry) if kept is None else _apply_entry(kept, entry)
    return kept if kept is None or kept.members else kept.but(unplaced=tuple(sorted(planned)))


def _start_from_launch(entry: AuditEntry) -> KeptFleet | None:
    if entry.data.get("command") != LAUNCH:
        return None
    launch = entry.data.get("launch") or {}
    try:
        pace = Pace.model_validate(launch["pace"]) if "pace" in launch else None
    except ValidationError:
        pace = None
    return KeptFleet(
        fleet=entry.rollout,
        owner=launch.get("owner", entry.actor),
        shadow=launch.get("shadow", entry.text.endswith("(shadow)")),
        launched_at=entry.at,
        launched_by=entry.actor,
        pace=pace,
        policy=launch.get("policy", {}),
    )


def _apply_entry(kept: KeptFleet, entry: AuditEntry) -> KeptFleet:
    data = entry.data
    match entry.kind:
        case AuditKind.PLAN:
            waves = {c: Wave(wave) for wave, clusters in data.get("waves", {}).items() for c in clusters}
            more = {name: tuple(data.get(name, ())) for name in ("moved", "skipped")}
            return kept.but(plan_hash=data.get("plan", ""), members=waves, **more)
        case AuditKind.COMMAND:
            return _apply_command(kept, entry)
        case AuditKind.TRANSITION if "after" in data:
            return kept.but(stage=FleetStage(data["after"]))
        case AuditKind.TRANSITION if "wave" in data:
            wave = Wave(data["wave"])
            through = entry.at if wave is kept.wave and entry.text.endswith("is through") else None
            return kept.but(wave=wave, through_at=through)
        case AuditKind.HOLD if "hold" in data:
            return kept.but(held=tuple(dict.fromkeys((*kept.held, data["hold"]))))
        case AuditKind.HOLD:
            return kept.but(held=())
        case _:
            return kept


def _apply_command(kept: KeptFleet, entry: AuditEntry) -> KeptFleet:
    data = entry.data
    clusters = tuple(data.get("clusters", ()))
    match data.get("command"):
        case "approve":
            return kept.but(approved_by=entry.actor)
        case "start":
            return kept.but(started=tuple(dict.fromkeys((*kept.started, *clusters))))
        case "skip":
            return kept.but(skipped=tuple(dict.fromkeys((*kept.skipped, *clusters))))
        case "move":
            wave = Wave(data["wave"])
            return kept.but(
                members={**kept.members, **dict.fromkeys(clusters, wave)},
                moved=tuple(dict.fromkeys((*kept.moved, *clusters))),
                skipped=tuple(c for c in kept.skipped if c not in clusters),
            )
        case "pace":
            new = change_pace(kept.pace or Pace(), data.get("pace", {}))
            return kept if isinstance(new, str) else kept.but(pace=new)
        case _:
            return kept
