"""The states of the made-up fleet's rollouts, in one place: the ledger, the index and each page read them from here.

The product's own state machine makes each cluster's plan (tests/unit/pure_world.py), and the fleet rollout that
launched them all (benchmarks/console_waves.py). When each began, what those that are monitored have cut, who asked for
more and which windows are declared is made up. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from activities.adapters.ledger.facade import Ledger
from activities.ports.registry import OpenRollout
from benchmarks.console_waves import APPROVED_BY, FLEET_ROLLOUT, Lived, fleet_rollout
from models.audit_chain import AuditEntry, AuditKind
from models.base import DAY, HOUR
from models.cluster.policy import Tier
from models.cluster.windows import Declared, Window, WindowKind
from models.fleet.messages import Prospect
from models.fleet.order import prospect_of
from models.fleet.state import FleetRollout, Wave
from models.planning.plan import Plan
from models.requests.state import Assessment, QuotaAsk, RequestState
from models.rollout.command_previews import Ahead, TeamBack, ahead_of
from models.rollout.commands import backing_for
from models.rollout.effects import EffectKind
from models.rollout.messages import RecordRequest
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutNote, RolloutStatus
from tests.unit import pure_world

CUT = 160
"""GPUs that the plan of each cluster that is monitored has cut."""
BEFORE_GPUS = (324, 164, 184, 224, 124)
"""The five quotas of a cluster that is monitored, before they were cut."""
_WAITS, _NONE, _PILOTS = 10, 25, 100
_TROUBLES = {
    120: "stuck",
    140: "objected",
    230: "drifted",
    350: "paused",
    560: "silent",
    640: "rolled back",
}
"""Those that wait, and not for an approval: it came five days ago."""
_WORSE = 10
"""GPUs that the plan of one that waits cuts beyond what was approved of it."""
_UNDOES = ("unfollow", "soften", "restore", "release")
_STEPS = (Stage.PLANNED, Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED)
_WINDOWS, _REQUESTS = 12, 8
_REASONS = ("evals before the release", "a longer context", "the new data mix", "two more seeds")


def has_rollout(number: int) -> bool:
    """Return whether the cluster has a rollout. Every 25th has none: it can be launched, and its wave has not come."""
    return number % _NONE != 13


def waits(number: int) -> bool:
    """Return whether a person must act: on every tenth, mostly to approve a plan that cuts more than was approved. The
    others are monitored."""
    return number % _WAITS == 0


def trouble_of(number: int) -> str:
    """Return the rollout's trouble; empty: it waits for an approval, or for nobody."""
    return _TROUBLES.get(number, "")


def is_cut(number: int) -> bool:
    """Return whether the plan has cut the cluster's quotas."""
    return has_rollout(number) and not waits(number)


def is_pilot(number: int) -> bool:
    return number % _PILOTS == 4


def owner(number: int) -> str:
    """Return the owner of each rollout: the person who launched the fleet rollout."""
    return "user:tpm"


class Recorded(pure_world.World):
    """A world that keeps the entries that it would archive."""

    def __init__(self, *of: Any, **more: Any) -> None:
        self.entries = list[AuditEntry]()
        super().__init__(*of, **more)

    @property
    def teams(self) -> list[str]:
        return sorted(self.quotas)

    def post(self) -> bool:
        self.entries += self.r.post.outbox
        return super().post()


def _troubled(world: Recorded, trouble: str, now: datetime) -> None:
    """Approve the rollout when it began, then let this trouble happen."""
    world.say(Command.APPROVE, actor=APPROVED_BY, plan_hash=world.plans[-1].hash)
    if trouble in ("stuck", "drifted", "rolled back"):
        world.until(Stage.BUFFERED)
    else:
        world.wait("1d")
    match trouble:
        case "stuck":
            world.fail(EffectKind.RESTORE, "Unavailable")
            world.say(Command.ROLLBACK, actor="user:sre", reason="jobs were preempted that should not have been")
        case "objected":
            world.say(Command.OBJECT, actor="user:recsys-lead", team=min(world.quotas), reason="a launch on Friday")
        case "drifted":
            world.foreign(min(world.quotas), 96, by="user:sre")
        case "paused":
            world.say(Command.PAUSE, actor="user:sre", reason="the scheduler is upgraded")
        case "silent":
            world.silent()
        case "rolled back":
            world.say(Command.ROLLBACK, actor="user:sre", reason="an eval run needs its quota until Friday")
    world.wait(now - world.now)


@dataclass
class Scene:
    """The fleet's rollouts as of `now`. `name`, `world_of`: of a cluster, by its number."""

    now: datetime
    name: Callable[[int], str]
    world_of: Callable[[int], Recorded]
    stood: Callable[[int, int], tuple[int, int]]
    """GPUs that it promises now, and those that were healthy so many hours ago."""
    _worlds: dict[int, Recorded] = field(default_factory=dict)

    def began(self, number: int) -> datetime:
        """Return when the rollout began: pilots first, three days of soak after them, then a day after each wave."""
        if trouble_of(number):
            return self.now - timedelta(days=5)
        if waits(number):
            return self.now - timedelta(hours=46 - number // _WAITS % 40)
        if is_pilot(number):
            return self.now - timedelta(days=24)
        wave = timedelta(days=18 if self.tier(number) is Tier.UNALLOCATED else 9)
        return self.now - wave + timedelta(hours=number // 2 % 120)

    def tier(self, number: int) -> Tier:
        """Return the deepest tier that the plan cuts; for monitored clusters it is made up."""
        if waits(number) or not has_rollout(number):
            return Tier(self._plan(number).wave)
        return Tier.UNSCHEDULED if number % 2 else Tier.UNALLOCATED

    def _plan(self, number: int) -> Plan:
        plan = self._world(number).r.plan
        assert plan is not None
        return plan

    def monitored(self, number: int) -> datetime | None:
        return None if waits(number) or not has_rollout(number) else self._reached(number, Stage.MONITORED)

    def cut_at(self, number: int) -> datetime | None:
        """Return when the quotas became smaller; None: not yet."""
        return None if self.monitored(number) is None else self._reached(number, Stage.BUFFERED)

    def phantom_cut(self, number: int) -> int:
        """Return how many of the GPUs cut then were phantom."""
        at = self.cut_at(number)
        if at is None:
            return 0
        promised, healthy = self.stood(number, int((self.now - at) / HOUR))
        return max(0, promised + CUT - healthy) - max(0, promised - healthy)

    def fleet(self, clusters: int) -> FleetRollout:
        return fleet_rollout([self._lived(n) for n in range(clusters)], owner(0), "the quarter's haircut")

    def _lived(self, number: int) -> Lived:
        opened = has_rollout(number)
        prospect = self._prospect(number)
        return Lived(
            prospect=prospect,
            pilot=is_pilot(number),
            rollout=self.rollout(number),
            began=self.began(number) if opened else None,
            monitored=self.monitored(number),
            cut_gpus=prospect.cut_gpus + _WORSE * (opened and waits(number)),
            needs=self.needs(number) if opened else "",
            stage=self.stage(number) if opened else Stage.PLANNED,
        )

    def _prospect(self, number: int) -> Prospect:
        """Return the plan's figures from when the fleet's plan was approved."""
        if self.monitored(number) is None:
            prospect = prospect_of(self._plan(number))
            worse = _WORSE if has_rollout(number) else 0
            return prospect.model_copy(update={"cluster": self.name(number), "cut_gpus": prospect.cut_gpus - worse})
        return Prospect(cluster=self.name(number), wave=Wave.of(self.tier(number)), headroom=0.1, cut_gpus=CUT)

    def rollout(self, number: int) -> str:
        return f"{self.name(number)}/1"

    def _world(self, number: int) -> Recorded:
        if number not in self._worlds:
            # Its rollout is of this cluster, and of today; what others play in this process is of their own.
            others = pure_world.T0, pure_world.CLUSTER
            trouble = trouble_of(number)
            began = self.began(number) if trouble else self.now
            pure_world.T0, pure_world.CLUSTER = began, self.name(number)
            try:
                self._worlds[number] = self.world_of(number)
                self._worlds[number].run()
                if trouble:
                    _troubled(self._worlds[number], trouble, self.now)
            finally:
                pure_world.T0, pure_world.CLUSTER = others
        return self._worlds[number]

    def status(self, number: int) -> RolloutStatus:
        status = self._world(number).status
        own: dict[str, Any] = {"cluster": self.name(number), "rollout": self.rollout(number), "owner": owner(number)}
        if trouble_of(number):
            return status.model_copy(update=own)
        if waits(number):
            return status.model_copy(update={**own, "entered_at": self.began(number)})
        teams = tuple(
            t.model_copy(update={"promise": True, "planned_gpus": t.quota_gpus, "baseline_gpus": t.quota_gpus + share})
            for t in status.teams
            for share in (CUT // len(status.teams),)
        )
        there: dict[str, Any] = {
            "stage": Stage.MONITORED,
            "waiting_for": (),
            "needs": "",
            "approved_by": APPROVED_BY,
            "teams": teams,
        }
        there |= {"wave": self.tier(number), "cut_gpus": CUT}
        return status.model_copy(update={**own, **there, "entered_at": self._reached(number, Stage.MONITORED)})

    def ahead(self, number: int) -> Ahead:
        world = self._world(number)
        ahead = ahead_of(world.r, world.now)
        own: dict[str, Any] = {"cluster": self.name(number), "rollout": self.rollout(number)}
        if waits(number):
            return ahead.but(**own)
        teams = self.status(number).teams
        before = {t.team: t.baseline_gpus for t in teams}
        backing = backing_for(world.r, before)
        assert backing is not None
        back = tuple(
            TeamBack(team=t, gpus=now, back_gpus=gpus, backing_gpus=backing.of.get(t, 0))
            for t, gpus, now in sorted((t.team, t.baseline_gpus, t.quota_gpus) for t in teams)
        )
        own |= {"stage": Stage.MONITORED, "plan": None, "approve_told": None, "undoes": _UNDOES, "back": back}
        lacking = sum(before.values()) - sum(backing.of.values())
        return ahead.but(**own, unbacked_gpus=lacking, told=tuple(sorted(before)), close_told=tuple(sorted(before)))

    def stage(self, number: int) -> Stage:
        return self.status(number).stage if waits(number) else Stage.MONITORED

    def needs(self, number: int) -> str:
        return self.status(number).needs if waits(number) else ""

    def _reached(self, number: int, stage: Stage) -> datetime:
        return self.began(number) + DAY * _STEPS.index(stage)

    def kept(self, ledger: Ledger, clusters: int) -> None:
        """Store all in the ledger: open rollouts with their archive, future windows, and requests."""
        for number in filter(has_rollout, range(clusters)):
            self._open(ledger, number)
        ledger.registry.archive(self.fleet(clusters).outbox)
        near = [number for number in range(clusters) if not number % (1 + clusters // _WINDOWS)]
        windows = tuple((self.name(n), self._window(n)) for n in near[:_WINDOWS])
        ledger.calendar.declare([Declared(source="hold 3f2a91", windows=windows)], "user:hw-lead", self.now)
        for number in range(_REQUESTS):
            ledger.registry.keep_request(self._request(number, clusters))

    def _open(self, ledger: Ledger, number: int) -> None:
        name, rollout, began = self.name(number), self.rollout(number), self.began(number)
        baseline = self._world(0).r.baseline.model_copy(update={"cluster": name})
        ledger.registry.open_rollout(
            OpenRollout(
                rollout=rollout,
                cluster=name,
                owner=owner(number),
                opened_at=began,
                baseline=baseline,
                fleet=FLEET_ROLLOUT,
            ),
            adopt=False,
        )
        stage, needs, entries = self.stage(number), self.needs(number), self._entries(number)
        record = RecordRequest(
            rollout=rollout,
            entries=entries,
            stage=stage,
            ended=False,
            completed=False,
            needs=needs,
            held=self.status(number).holds,
            note=self._note(number),
        )
        ledger.registry.record(record)

    def _note(self, number: int) -> RolloutNote:
        """Return the rollout's note, as its status has it."""
        status = self.status(number)
        return RolloutNote(
            entered_at=status.entered_at,
            wave=status.wave,
            waits=tuple(c for c in status.waiting_for if c.name != "holds"),
            lacking_gpus=sum(r.quota_gpus - r.backing_gpus for r in status.at_risk) or status.phantom_gpus,
            lacking_teams=tuple(r.team for r in status.at_risk),
            lacking_team_count=len(status.at_risk),
        )

    def _entries(self, number: int) -> tuple[AuditEntry, ...]:
        if trouble_of(number):
            own = {"cluster": self.name(number), "rollout": self.rollout(number)}
            its_own = enumerate(self._world(number).entries)
            return tuple(entry.but(**own, key=f"{self.rollout(number)}/{n}") for n, entry in its_own)

        def entry(at: datetime, kind: AuditKind, actor: str, text: str, reason: str = "", **data: Any) -> AuditEntry:
            key = f"{self.rollout(number)}/{text}"
            return AuditEntry(
                key=key,
                cluster=self.name(number),
                rollout=self.rollout(number),
                at=at,
                kind=kind,
                actor=actor,
                text=text,
                reason=reason,
                data=data,
            )

        began, who = self.began(number), owner(number)
        launched = f"launched by {who} in fleet rollout {FLEET_ROLLOUT}"
        entries = [entry(began, AuditKind.COMMAND, who, launched, "the quarter's haircut", command="launch")]
        drawn = began + timedelta(minutes=1)
        cut_at = self.cut_at(number)
        if cut_at is None:
            plan = next(text for text in self._world(number).story if text.startswith("plan "))
            return (*entries, entry(drawn, AuditKind.PLAN, "backstop", plan, approved=False))
        entries.append(entry(drawn, AuditKind.PLAN, "backstop", "a plan was made from the ledger's health"))
        for before, after in pairwise(_STEPS):
            text, at = f"{before} -> {after}", self._reached(number, after)
            entries.append(entry(at, AuditKind.TRANSITION, "backstop", text, before=before.value, after=after.value))
        phantom = self.phantom_cut(number)
        cut = {"gpus": CUT, "phantom_gpus": phantom, "to_flex_gpus": CUT - phantom}
        quotas = self.status(number).teams
        moved = ", ".join(f"{t.team} {t.baseline_gpus} -> {t.quota_gpus}" for t in quotas)
        written = entry(cut_at, AuditKind.EFFECT, "backstop", f"set_soft: {moved}", effect="set_soft", cut=cut)
        return (*entries[:2], written, *entries[2:])

    def _window(self, number: int) -> Window:
        starts = (self.now + timedelta(days=1 + number % 9)).replace(hour=6, minute=0, second=0, microsecond=0)
        kind = WindowKind.FREEZE if number % 3 == 2 else WindowKind.MAINTENANCE
        reason = "no changes over the deadline" if kind is WindowKind.FREEZE else "new switches in the east island"
        whole = kind is WindowKind.FREEZE
        return Window(
            kind=kind,
            starts=starts,
            ends=starts + timedelta(hours=10),
            reason=reason,
            islands=None if whole else ("east",),
            gpus=None if whole else 64,
        )

    def _request(self, number: int, clusters: int) -> RequestState:
        at = self.now - timedelta(hours=5 * number + 2)
        ask = QuotaAsk(
            request=f"q-{number + 1}",
            team=self._world(number % clusters).teams[number % 5],
            cluster=self.name(number % clusters),
            gpus=16 + 8 * number,
            until=self.now + timedelta(days=14 + number),
            actor=f"user:{self._world(number % clusters).teams[number % 5]}-lead",
            reason=_REASONS[number % len(_REASONS)],
        )
        return RequestState(
            ask=ask, asked_at=at, changed_at=at, assessment=Assessment(fits=True), said="waits for the owner"
        )
