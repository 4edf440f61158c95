"""The state of one rollout: everything that is decided by, and nothing that could be derived.

It is a value: reducers (plan_, look_, effect_ and time_reducers.py, and commands.py) answer a new one, and
continue-as-new carries it over. What lives shorter than the rollout is a value of its own, there or not, so that it
ends as a whole: `Stay`, `Realigning`, `Granting`, `Undo`. models/rollout/legacy_state.py reads earlier versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, model_validator

from models.audit_chain import BACKSTOP, AuditKind
from models.base import Count, Model, Name, Time
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.readings import LimitMode, Observation
from models.cluster.snapshot import Snapshot
from models.notices import Notice, NoticeKind
from models.planning.busy_work import beyond_of_work, cut_of_work, short_of_work
from models.planning.cut_reasons import TiersTaken, breach_reason
from models.planning.grants import Granted, GrantOrder
from models.planning.plan import Envelope, Plan, QuotaPlan
from models.rollout.effects import EffectKind
from models.rollout.guard import Clocks, Sight
from models.rollout.holds import Hold
from models.rollout.legacy_state import nest_state
from models.rollout.post import Post
from models.rollout.stages import TRANSITIONS, Stage


class UndoCause(StrEnum):
    UNDO = "undo"
    BREACH = "breach"


class Realigning(Model):
    """A new plan is to be written in place, without leaving the stage (on_breach: realign, or a proposal)."""

    before: Plan | None
    """The plan that stands, to which the rollout returns when nothing comes of it."""
    proposed: bool = False
    """It is a proposal's: no breach waits for it, and it is given up rather than made anew."""


class Proposal(Model):
    """A plan on the long-run health, beside the one that stands."""

    plan: Plan
    at: Time


class Outlook(Model):
    """What long-run health asks of a monitored rollout."""

    reconsider: tuple[Island, ...] = ()
    """Long-run health to make a proposal on; empty: none is wanted."""
    proposal: Proposal | None = None
    considered_gpus: Count | None = None
    """The long-run healthy GPUs that were last planned on; None: those of the plan."""
    derived_at: Time | None = None
    """When its buffer was last derived anew from health history."""


class Stay(Model):
    """One stay in one stage: over with it, as a whole."""

    since: Time
    soak_since: Time
    waived: bool = False
    """`promote`: what is left of notice, soak and acknowledgements of this gate does not count."""
    done: tuple[EffectKind, ...] = ()
    """Effects of the present step, or of a realignment, that have landed."""
    exempt: bool = False
    """A person lifted the blast radius for what is next written."""
    replan: str = ""
    """Why a new plan is wanted; empty: none is."""
    aiming: tuple[str, ...] = ()
    """Teams in a breach whose rollback is about to begin."""
    restoring: bool = False
    """Our values are to be written again over what others changed. A realignment may wait beside it."""
    refitting: bool = Field(default=False, exclude_if=lambda so: not so)
    """A person accepted what others set: the limit above all quotas is to fit that, once hardware backs it."""
    realigning: Realigning | None = None
    outlook: Outlook = Outlook()


class Approval(Model):
    envelope: Envelope
    by: str


class Announced(Model):
    """What the teams were told of the present plan, and what they said."""

    cuts: dict[str, int] = Field(default_factory=dict)
    """The cut each team was last told."""
    delivered_at: Time | None = None
    """When the last notice of the present plan had been delivered."""
    undelivered: tuple[str, ...] = ()
    acks: tuple[str, ...] = ()


class PublishedFlex(Model):
    """The flex pool as a scheduler reads it."""

    gpus: Count | None = None
    """The surplus that we last published."""
    more_since: Time | None = None
    """Since when looks have found more surplus than the band lets pass."""
    failed_at: Time | None = None
    """When it last could not be published: the next try waits a little, and nothing is undone for it."""


class Granting(Model):
    """A request's order that waits to be written."""

    order: GrantOrder
    begun: bool = False
    """Its call is under way: it is answered, whatever else happens."""


class Undone(Model):
    """A forward effect whose inverse could not finish, and why."""

    kind: EffectKind
    reason: str


class Undo(Model):
    """A rollback: why, by whom, where to (values by team), and how far it has come. Kept until the next attempt."""

    why: UndoCause
    actor: str
    reason: str
    at: Time
    then: Stage = Stage.ROLLED_BACK
    """ABORTED ends the rollout once everything is undone."""
    target: dict[str, int]
    changed: dict[str, int] = Field(default_factory=dict)
    """Values by team that others had written when it began: not ours, so they stay, unless they are ours again."""
    broken_floors: tuple[str, ...] = ()
    taken: dict[str, TiersTaken] = Field(default_factory=dict, exclude_if=lambda taken: not taken)
    """Of a breach: by leaf that it touches what is taken of its baseline."""
    unbacked_gpus: Count = 0
    """Of an undo: GPUs of the target that today's hardware cannot back."""
    owed: tuple[EffectKind, ...] = ()
    """Forward effects still to be undone, the next one first."""
    undone: tuple[EffectKind, ...] = ()
    """Forward effects whose inverse has landed, in that order."""
    was: dict[str, int] = Field(default_factory=dict)
    """Of the quotas that it has set back so far, the values that stood before, by team."""
    stuck_on: tuple[Undone, ...] = ()
    aimed_again: bool = Field(default=False, exclude_if=lambda so: not so)
    """Of a breach: others changed a quota between its aim and its write, and it was aimed once more beside that."""


class Rollout(Model):
    """One cluster's rollout. Times are the workflow's clock, in UTC."""

    cluster: Name
    id: str
    owner: str
    shadow: bool = False
    ticketed: bool = Field(default=False, exclude_if=lambda so: not so)
    """Keys are configured: only tickets command it, and a cancel from Temporal undoes nothing."""
    launched_at: Time
    policy: Policy
    baseline: Snapshot
    """The quotas before the first effect, with the usage frozen for planning."""
    modes: dict[str, LimitMode] = Field(default_factory=dict)
    """The baseline's modes by team."""
    generation: Count = 0
    """The generation our picture of the cluster was made from."""

    stage: Stage = Stage.PLANNED
    stay: Stay
    attempt: Count = 1
    failures: Count = 0
    """Breach rollbacks since the rollout was last monitored."""
    rollbacks: Count = 0
    failed_rollbacks: Count = 0
    """Rollbacks that began, whatever for; and of those the ones that no person asked for."""
    completed: bool = False
    """True once it has been monitored: moves a ramp on, once."""
    ended_because: str = ""

    plan: Plan | None = None
    approval: Approval | None = None
    announced: Announced = Announced()
    proposed_at: Time | None = None
    """When a plan on the long-run health was last proposed, or could not be."""

    granting: Granting | None = None
    granted: Granted | None = None
    """What became of the last order."""
    grants: dict[str, dict[str, int]] = Field(default_factory=dict)
    """What standing grants raised since the launch, by request and team."""
    given_back: tuple[str, ...] = ()
    """Requests whose grants have ended, the last ones."""

    fence: Count = 0
    standing: tuple[EffectKind, ...] = ()
    """Forward effects whose inverse is owed, in the order they were attempted."""
    stood: tuple[EffectKind, ...] = ()
    """`standing` before the last call: what stands if that call wrote nothing."""
    unanswered: tuple[EffectKind, ...] = ()
    """Forward effects whose call failed for good, so that nobody knows whether they stand."""
    written: dict[str, int] = Field(default_factory=dict)
    """What we believe the quota system holds: baseline, then what we wrote."""
    was: dict[str, int] = Field(default_factory=dict)
    """Of the quotas that the last write forward changed, the values that stood before, by team."""
    foreign: tuple[str, ...] = ()
    """Teams whose value others changed after ours was written, and that we have not written since."""
    modes_given: dict[str, LimitMode] = Field(default_factory=dict)
    """Modes by team that others set after ours, taken as given; ours again once we write them."""
    unapproved: dict[str, int | None] = Field(default_factory=dict)
    """What others set and nobody has approved, by team with the GPUs that were approved; None: it was not there."""
    attempted: dict[str, int] = Field(default_factory=dict)
    """Values of a write that was never answered: where they are found, they are ours."""
    undo: Undo | None = None
    superseded: str = ""

    holds: tuple[Hold, ...] = ()
    flex: PublishedFlex = PublishedFlex()

    seen: Observation | None = None
    looked_at: Time | None = None
    looked_after: Count = 0
    """The fence counter when the last look began: what was written since, it could not see."""
    look_asked: bool = True
    """Somebody (the watch, a command, a timer) asked for a fresh look."""
    look_failed: str = ""
    sight: Sight = Sight()
    clocks: Clocks = Clocks()
    breach_of: tuple[str, ...] = ()
    """Teams whose promise is withdrawn."""
    warned: tuple[str, ...] = ()
    """Teams that were told that their quota is at risk, and not yet that it is backed again."""

    post: Post = Post()
    asks: bool = False
    """What others changed waits for a person. False in a run from before that was so."""
    rests: bool = False
    """While nothing is wanted it looks once a day (`Policy.resting_poll`). False in a run from before that was so."""

    @model_validator(mode="before")
    @classmethod
    def _read_flat(cls, data: Any) -> Any:
        return nest_state(data) if isinstance(data, dict) else data

    def with_stay(self, **changes: Any) -> Self:
        """The same stay in the same stage, with these of its fields changed."""
        return self.but(stay=self.stay.but(**changes))

    def with_undo(self, **changes: Any) -> Self:
        """With these fields of the way back changed, where there is one."""
        return self if self.undo is None else self.but(undo=self.undo.but(**changes))

    def with_announced(self, **changes: Any) -> Self:
        """With these fields of what the teams were told changed."""
        return self.but(announced=self.announced.but(**changes))

    def with_outlook(self, **changes: Any) -> Self:
        """With these fields of the outlook changed."""
        return self.with_stay(outlook=self.stay.outlook.but(**changes))

    @property
    def envelope(self) -> Envelope | None:
        """What was approved last, whether or not it holds the present plan."""
        return None if self.approval is None else self.approval.envelope

    @property
    def approved_by(self) -> str:
        return "" if self.approval is None else self.approval.by

    @property
    def is_realigning(self) -> bool:
        return self.stay.realigning is not None

    @property
    def is_proposing(self) -> bool:
        """The realignment under way is a proposal's."""
        return self.stay.realigning is not None and self.stay.realigning.proposed

    @property
    def proposal(self) -> Proposal | None:
        return self.stay.outlook.proposal

    @property
    def standing_plan(self) -> Plan | None:
        """The plan that the present quotas are from: while another is being written in place, the one before it."""
        before = None if self.stay.realigning is None else self.stay.realigning.before
        return before or self.plan

    @property
    def owed(self) -> tuple[EffectKind, ...]:
        """Forward effects that the rollback under way has still to undo, the next one first."""
        return () if self.undo is None else self.undo.owed

    @property
    def undone(self) -> tuple[EffectKind, ...]:
        """Forward effects whose inverse has landed in the present rollback, in that order."""
        return () if self.undo is None else self.undo.undone

    @property
    def stuck_on(self) -> tuple[Undone, ...]:
        return () if self.undo is None else self.undo.stuck_on

    @property
    def grant_order(self) -> GrantOrder | None:
        """A request's order that waits to be written."""
        return None if self.granting is None else self.granting.order

    @property
    def grant_begun(self) -> bool:
        """The call that writes it is under way."""
        return self.granting is not None and self.granting.begun

    @property
    def effects_stand(self) -> bool:
        return bool(self.standing)

    @property
    def values_stand(self) -> bool:
        """Quotas were written, or may have been: from then on the baseline no longer follows the cluster."""
        return EffectKind.SET_SOFT in self.standing

    @property
    def is_closing(self) -> bool:
        """Closed, and the quota system has yet to be told: the rollout is not over for the registry."""
        return self.stage is Stage.CLOSED and EffectKind.CLOSE not in self.stay.done and not self.superseded

    @property
    def at_risk(self) -> dict[str, int]:
        """GPUs that standing quotas lack now, by team, declared absences included.

        Where the last look saw no sample that is believed, the last known shortage stands.
        """
        if not self.stage.is_guarded:
            return {}
        if self.seen is None or self.seen.health is None or self.seen.health != self.sight.known:
            return self.clocks.at_risk
        return dict(self.seen.shortage)

    @property
    def affected_teams(self) -> tuple[str, ...]:
        """Leaf teams that the plan cuts."""
        return () if self.plan is None else tuple(q.team for q in self.plan.quotas if q.leaf and q.cut_gpus)

    @property
    def is_approved(self) -> bool:
        """This plan is approved by its hash, or by an envelope that holds it."""
        return self.plan is not None and self.envelope is not None and self.envelope.holds(self.plan)

    def record(
        self,
        kind: AuditKind,
        text: str,
        at: datetime,
        *,
        actor: str = BACKSTOP,
        reason: str = "",
        **data: Any,
    ) -> Self:
        """With one more entry for the archive."""
        post = self.post.with_entry(
            self.id,
            cluster=self.cluster,
            rollout=self.id,
            at=at,
            kind=kind,
            actor=actor,
            text=text,
            reason=reason,
            data=data,
        )
        return self.but(post=post)

    def enter_stage(self, stage: Stage, at: datetime, why: str, actor: str = BACKSTOP, **data: Any) -> Self:
        """In another stage: what belonged to the earlier one is over."""
        if (self.stage, stage) not in TRANSITIONS:
            raise AssertionError(f"no way leads from {self.stage} to {stage}")
        moved = self.but(
            stage=stage,
            stay=Stay(since=at, soak_since=at),
            rollbacks=self.rollbacks + (stage is Stage.ROLLING_BACK),
            failed_rollbacks=self.failed_rollbacks + (stage is Stage.ROLLING_BACK and actor in (BACKSTOP, "guard")),
            look_asked=True,
            warned=() if stage is Stage.ROLLING_BACK else self.warned,
            plan=self.standing_plan,
        )
        return moved.record(
            AuditKind.TRANSITION,
            f"{self.stage} -> {stage}: {why}",
            at,
            actor=actor,
            before=self.stage.value,
            after=stage.value,
            attempt=self.attempt,
            **data,
        )

    def notify(self, kind: NoticeKind, teams: Iterable[str], **fields: Any) -> Self:
        """With a notice to each team in the mail; to the owner where no team is named."""
        audiences = list(teams) or ([self.owner] if kind in (NoticeKind.HELD, NoticeKind.STUCK) else [])
        rows = {} if self.plan is None else {q.team: q for q in self.plan.quotas}
        before, after = self._moves(kind)
        backing = self.present_backing
        notices = []
        for serial, audience in enumerate(audiences, start=self.post.serial + 1):
            row = rows.get(audience)
            notices.append(
                Notice(
                    key=f"{self.id}/{serial:06d}/{kind}",
                    kind=kind,
                    cluster=self.cluster,
                    audience=audience,
                    owner=self.owner,
                    before_gpus=before.get(audience),
                    after_gpus=after.get(audience),
                    phantom_gpus=row.phantom_gpus if row is not None else 0,
                    phantom_since=self.plan.phantom_since if self.plan is not None else None,
                    to_flex_gpus=row.to_flex_gpus if row is not None else 0,
                    reasons=self._reasons(kind, audience, row),
                    backing_gpus=None if backing is None else backing.get(audience),
                    yields=self._yields(kind, audience),
                    stage=self.stage.value,
                    shadow=self.shadow,
                    **fields,
                )
            )
        # Values that no look has tested before they were written: told when one has.
        unseen = tuple(n.key for n in notices) if backing is None and kind is NoticeKind.ROLLED_BACK else ()
        post = self.post.but(
            serial=self.post.serial + len(notices),
            mail=(*self.post.mail, *notices),
            unseen=(*self.post.unseen, *unseen),
        )
        return self.but(post=post)

    def _reasons(self, kind: NoticeKind, team: str, row: QuotaPlan | None) -> tuple[str, ...]:
        """Why a quota is as it is: by the plan, or by the breach that was answered since."""
        if kind is NoticeKind.ROLLED_BACK:
            return tuple(filter(None, [self.why_set_back(team)]))
        return () if row is None else tuple(cut.reason for cut in row.cuts)

    def why_set_back(self, team: str) -> str:
        """Why a breach rollback takes from a quota what it takes, in a sentence; empty where it does not touch it."""
        if self.undo is None or team not in self.undo.taken:
            return ""
        return breach_reason(self.baseline.tree.by_team[team].gpus, self.undo.taken[team])

    def _yields(self, kind: NoticeKind, team: str) -> str:
        """Who of the team yields first where GPUs in use are cut, or have no healthy one behind them any more."""
        if kind in (NoticeKind.PLANNED, NoticeKind.CHANGED, NoticeKind.BUFFERED):
            return cut_of_work(self.plan, team)
        if self.seen is not None and kind is NoticeKind.ROLLED_BACK:
            return beyond_of_work(self.seen.work, team, self.written.get(team))
        if self.seen is None or kind not in (NoticeKind.AT_RISK, NoticeKind.BREACH):
            return ""
        of = [work for work in self.seen.work if work.team in (self.breach_of if team == self.owner else (team,))]
        stands = {**{q.team: q.gpus for q in self.baseline.quotas}, **self.written}
        sentence = short_of_work(of, self.present_backing, stands)
        return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""

    def _moves(self, kind: NoticeKind) -> tuple[dict[str, int], dict[str, int]]:
        """From which value of each quota to which a notice tells: what was there before it, and what is, or will be."""
        baseline = {q.team: q.gpus for q in self.baseline.quotas}
        planned = {} if self.plan is None else self.plan.values
        stands = {**baseline, **self.written}
        match kind:
            case NoticeKind.PLANNED | NoticeKind.CHANGED if not self.stage.is_guarded:
                return stands, {**stands, **planned}
            case NoticeKind.BUFFERED | NoticeKind.CHANGED:
                return {**stands, **self.was}, stands
            case NoticeKind.ROLLED_BACK:
                return {**stands, **({} if self.undo is None else self.undo.was)}, stands
            case _:
                return baseline, stands

    @property
    def present_backing(self) -> dict[str, int] | None:
        """GPUs behind each leaf as the quotas are now; None where no look has told since they were written."""
        if self.seen is None or self.seen.health is None:
            return None
        if self.written.items() <= self.seen.tested.items():
            return self.seen.backing
        present = self.seen.reading.values
        return None if self.shadow or not self.written.items() <= present.items() else self.seen.now.backing


def proposed_changes(rollout: Rollout, plan: Plan) -> dict[str, tuple[int, int]]:
    """Present and planned value of each leaf quota that the plan would change, by team."""
    values = {q.team: q.after_gpus for q in plan.quotas if q.leaf}
    return {t: (rollout.written[t], gpus) for t, gpus in values.items() if rollout.written.get(t, gpus) != gpus}
