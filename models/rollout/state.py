"""The state of one rollout: every fact that decisions depend on, and nothing that can be derived.

A `Rollout` is a value. Reducers (plan_, look_, effect_ and time_reducers.py, and commands.py) return a new one, and
continue-as-new carries it to the next run. A part that lives shorter than the rollout is a value of its own and ends as
a whole: `Stay`, `Realigning`, `Granting`, `Undo`. models/rollout/legacy_state.py reads earlier versions.
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
from models.lifecycle.holds import Hold
from models.lifecycle.outgoing import Outgoing
from models.notices import Notice, NoticeKind
from models.planning.backing import less_shortage
from models.planning.busy_work import beyond_of_work, cut_of_work, short_of_work
from models.planning.cut_reasons import TiersTaken, breach_reason
from models.planning.grants import Granted, GrantOrder
from models.planning.plan import Envelope, Plan, QuotaPlan
from models.rollout.effects import EffectKind
from models.rollout.guard import Clocks, Sight
from models.rollout.legacy_state import nest_state
from models.rollout.stages import TRANSITIONS, Stage


class Post(Outgoing):
    """The entries and notices still to go out, with their delivery state."""

    unseen: tuple[str, ...] = ()
    """Keys of notices about backing that no look has tested since the quotas were written."""
    owner_told: tuple[str, ...] = ()
    """Marks of the current news of which the owner was notified (models/rollout/owner_news.py)."""
    trouble: str = ""
    """Why the mail is being tried again; empty: it is not."""
    waiting: dict[str, Time] = Field(default_factory=dict)
    """By key, notices that the ledger sends, with the time to ask whether it has sent them."""
    noted: Stage | None = None
    """The stage that the registry shows."""


class UndoCause(StrEnum):
    UNDO = "undo"
    BREACH = "breach"


class Realigning(Model):
    """A new plan that is written in place, without leaving the stage (on_breach: realign, or a proposal)."""

    before: Plan | None
    """The plan in force, to which the rollout returns if the realignment is given up."""
    proposed: bool = False
    """True for a proposal, for which no breach waits: Backstop gives it up instead of planning again."""


class Proposal(Model):
    """A plan on the long-run health, proposed beside the plan in force."""

    plan: Plan
    at: Time
    approved: bool = Field(default=False, exclude_if=lambda approved: not approved)
    """Whether a person has approved it since it was proposed."""


class Outlook(Model):
    """The changes that long-run health asks of a monitored rollout."""

    reconsider: tuple[Island, ...] = ()
    """Islands with the long-run health on which to plan a proposal; empty: no proposal is wanted."""
    proposal: Proposal | None = None
    considered_gpus: Count | None = None
    """Long-run healthy GPUs that the last proposal was planned on; None: those of the plan in force."""
    derived_at: Time | None = None
    """Time at which the buffer was last derived from health history."""


class Stay(Model):
    """The facts about one stay in one stage; they end with it."""

    since: Time
    soak_since: Time
    waived: bool = False
    """`promote` waived the rest of notice, soak and acknowledgements of this gate."""
    done: tuple[EffectKind, ...] = ()
    """Effects of the present step, or of a realignment, that were applied."""
    exempt: bool = False
    """A person exempted the next write from the blast radius."""
    replan: str = ""
    """The reason a new plan is wanted; empty: none is."""
    aiming: tuple[str, ...] = ()
    """Teams in a breach whose rollback is about to begin."""
    restoring: bool = False
    """Backstop is about to write its values over what others changed. A realignment may wait meanwhile."""
    refitting: bool = Field(default=False, exclude_if=lambda so: not so)
    """A person accepted what others set: Backstop adjusts the limit above all quotas once hardware backs them."""
    realigning: Realigning | None = None
    outlook: Outlook = Outlook()


class Approval(Model):
    envelope: Envelope
    by: str


class Announced(Model):
    """The cuts that teams were notified of for the present plan, and their answers."""

    cuts: dict[str, int] = Field(default_factory=dict)
    """The cut that each team was last notified of."""
    delivered_at: Time | None = None
    """Time at which the last notice of the present plan was delivered."""
    undelivered: tuple[str, ...] = ()
    acks: tuple[str, ...] = ()


class PublishedFlex(Model):
    """The flex pool as a scheduler reads it."""

    gpus: Count | None = None
    """The surplus that Backstop last published; None: none."""
    more_since: Time | None = None
    """Time since which every look has seen more surplus than the band allows."""
    failed_at: Time | None = None
    """Time of the last failed attempt to publish: the next one waits a little, and nothing is undone for it."""


class Granting(Model):
    """A request's order that waits to be written."""

    order: GrantOrder
    begun: bool = False
    """The call that writes the order is under way; the order gets an answer whatever else happens."""


class Undone(Model):
    """A forward effect whose inverse could not finish, and why."""

    kind: EffectKind
    reason: str


class Undo(Model):
    """A rollback: its cause, its author, its target values by team, and its progress. Kept until the next attempt."""

    why: UndoCause
    actor: str
    reason: str
    at: Time
    then: Stage = Stage.ROLLED_BACK
    """The stage after the rollback; ABORTED ends the rollout."""
    target: dict[str, int]
    changed: dict[str, int] = Field(default_factory=dict)
    """Values of others, by team, when the rollback began: they stay, unless our value is back."""
    broken_floors: tuple[str, ...] = ()
    taken: dict[str, TiersTaken] = Field(default_factory=dict, exclude_if=lambda taken: not taken)
    """After a breach: the GPUs taken from the baseline of each leaf that the breach touches, by tier."""
    unbacked_gpus: Count = 0
    """For an undo: GPUs of the target that today's hardware cannot back."""
    owed: tuple[EffectKind, ...] = ()
    """Forward effects still to be undone, the next one first."""
    undone: tuple[EffectKind, ...] = ()
    """Forward effects whose inverse was applied, in the order of the inverses."""
    was: dict[str, int] = Field(default_factory=dict)
    """Earlier values, by team, of the quotas that the rollback has set back so far."""
    stuck_on: tuple[Undone, ...] = ()
    aimed_again: bool = Field(default=False, exclude_if=lambda so: not so)
    """After a breach: others changed a quota between aim and write, so Backstop has aimed a second time."""


class Rollout(Model):
    """The rollout of one cluster. Times are the workflow's clock, in UTC."""

    cluster: Name
    id: str
    owner: str
    shadow: bool = False
    ticketed: bool = Field(default=False, exclude_if=lambda so: not so)
    """Keys are configured: the rollout obeys only tickets, and a cancel from Temporal undoes nothing."""
    launched_at: Time
    policy: Policy
    baseline: Snapshot
    """The quotas before the first effect, with the usage frozen for planning."""
    modes: dict[str, LimitMode] = Field(default_factory=dict)
    """The baseline's modes by team."""
    generation: Count = 0
    """The generation of the quotas that this state describes."""

    stage: Stage = Stage.PLANNED
    stay: Stay
    attempt: Count = 1
    failures: Count = 0
    """Breach rollbacks since the rollout was last monitored."""
    rollbacks: Count = 0
    failed_rollbacks: Count = 0
    """`rollbacks` counts all rollbacks that began; `failed_rollbacks` those that no person asked for."""
    completed: bool = False
    """True once the rollout has been monitored; a ramp then moves on by one step."""
    ended_because: str = ""

    plan: Plan | None = None
    approval: Approval | None = None
    announced: Announced = Announced()
    proposed_at: Time | None = None
    """Time at which a plan on the long-run health was last proposed, or could not be made."""

    granting: Granting | None = None
    granted: Granted | None = None
    """The answer to the last grant's order."""
    grants: dict[str, dict[str, int]] = Field(default_factory=dict)
    """GPUs that grants in force have added since the launch, by request and team."""
    on_top: tuple[str, ...] = Field(default=(), exclude_if=lambda requests: not requests)
    """Requests whose grants no plan and no rollback has cut since: all their GPUs stand on top of the plan's values."""
    given_back: tuple[str, ...] = ()
    """The last requests whose grants have ended."""

    fence: Count = 0
    standing: tuple[EffectKind, ...] = ()
    """Forward effects whose inverse is owed, in the order of their calls."""
    stood: tuple[EffectKind, ...] = ()
    """`standing` before the last call: the effects in force if that call wrote nothing."""
    unanswered: tuple[EffectKind, ...] = ()
    """Forward effects whose call failed for good; it is unknown whether they were applied."""
    written: dict[str, int] = Field(default_factory=dict)
    """Values that we believe the quota system holds: the baseline, then our writes."""
    was: dict[str, int] = Field(default_factory=dict)
    """Earlier values, by team, of the quotas that the last forward write changed."""
    foreign: tuple[str, ...] = ()
    """Teams whose value others changed after our write and we have not written since."""
    modes_given: dict[str, LimitMode] = Field(default_factory=dict)
    """Modes by team that others set after ours and that we accept, until we write the team's mode again."""
    unapproved: dict[str, int | None] = Field(default_factory=dict)
    """Quotas that others set without approval, by team, with the GPUs approved before; None: it did not exist."""
    attempted: dict[str, int] = Field(default_factory=dict)
    """Values of a write that got no answer: a quota that has such a value counts as written by us."""
    undo: Undo | None = None
    superseded: str = ""

    holds: tuple[Hold, ...] = ()
    flex: PublishedFlex = PublishedFlex()

    seen: Observation | None = None
    looked_at: Time | None = None
    looked_after: Count = 0
    """The fence counter when the last look began; later writes were not visible to that look."""
    look_asked: bool = True
    """The watch, a command or a timer asked for a fresh look."""
    look_failed: str = ""
    sight: Sight = Sight()
    clocks: Clocks = Clocks()
    breach_of: tuple[str, ...] = ()
    """Teams in breach, whose promise is withdrawn."""
    warned: tuple[str, ...] = ()
    """Teams notified that their quota is at risk, and not yet notified that hardware backs it again."""

    post: Post = Post()
    asks: bool = False
    """Changes by others wait for a person's decision. False in a run that began before this rule."""
    rests: bool = False
    """It looks once a day while nothing is wanted (`Policy.resting_poll`). False in a run from before this rule."""

    @model_validator(mode="before")
    @classmethod
    def _read_flat(cls, data: Any) -> Any:
        return nest_state(data) if isinstance(data, dict) else data

    def with_stay(self, **changes: Any) -> Self:
        return self.but(stay=self.stay.but(**changes))

    def with_undo(self, **changes: Any) -> Self:
        """Return the rollout with these fields of its undo changed; unchanged if it has none."""
        return self if self.undo is None else self.but(undo=self.undo.but(**changes))

    def with_announced(self, **changes: Any) -> Self:
        return self.but(announced=self.announced.but(**changes))

    def with_outlook(self, **changes: Any) -> Self:
        return self.with_stay(outlook=self.stay.outlook.but(**changes))

    @property
    def envelope(self) -> Envelope | None:
        """The last approved envelope, whether or not it holds the present plan."""
        return None if self.approval is None else self.approval.envelope

    @property
    def approved_by(self) -> str:
        return "" if self.approval is None else self.approval.by

    @property
    def is_realigning(self) -> bool:
        return self.stay.realigning is not None

    @property
    def is_proposing(self) -> bool:
        return self.stay.realigning is not None and self.stay.realigning.proposed

    @property
    def proposal(self) -> Proposal | None:
        return self.stay.outlook.proposal

    @property
    def standing_plan(self) -> Plan | None:
        """The plan behind the present quotas; during a realignment, the plan before it."""
        before = None if self.stay.realigning is None else self.stay.realigning.before
        return before or self.plan

    @property
    def owed(self) -> tuple[EffectKind, ...]:
        return () if self.undo is None else self.undo.owed

    @property
    def undone(self) -> tuple[EffectKind, ...]:
        return () if self.undo is None else self.undo.undone

    @property
    def stuck_on(self) -> tuple[Undone, ...]:
        return () if self.undo is None else self.undo.stuck_on

    @property
    def grant_order(self) -> GrantOrder | None:
        return None if self.granting is None else self.granting.order

    @property
    def grant_begun(self) -> bool:
        """True while the call that writes the order is under way."""
        return self.granting is not None and self.granting.begun

    @property
    def answers_breach(self) -> bool:
        """True if its rollback answers a breach."""
        return self.undo is not None and self.undo.why is UndoCause.BREACH

    @property
    def is_overtaken(self) -> bool:
        """True if Backstop has written since the last look, which could not see that."""
        return self.looked_after != self.fence

    def hold(self, hold_id: str) -> Hold | None:
        return next((h for h in self.holds if h.id == hold_id), None)

    @property
    def effects_stand(self) -> bool:
        return bool(self.standing)

    @property
    def values_stand(self) -> bool:
        """True once quotas were, or may have been, written: the baseline then no longer follows the cluster."""
        return EffectKind.SET_SOFT in self.standing

    @property
    def is_closing(self) -> bool:
        """True for a closed rollout that the quota system has not been told of: its registry row is still open."""
        return self.stage is Stage.CLOSED and EffectKind.CLOSE not in self.stay.done and not self.superseded

    @property
    def at_risk(self) -> dict[str, int]:
        """GPUs that quotas in force lack now, by team, declared absences included.

        If the last look saw no sample that is believed, this is the last known shortage.
        """
        if not self.stage.is_guarded:
            return {}
        if self.seen is None or self.seen.health is None or self.seen.health != self.sight.known:
            return self.clocks.at_risk
        return dict(self.seen.shortage)

    @property
    def affected_teams(self) -> tuple[str, ...]:
        """Leaf teams that the plan cuts."""
        return (
            ()
            if self.plan is None
            else tuple(quota.team for quota in self.plan.quotas if quota.leaf and quota.cut_gpus)
        )

    @property
    def is_approved(self) -> bool:
        """True if this plan is approved, by its hash or by an envelope that holds it."""
        return self.plan is not None and self.envelope is not None and self.envelope.holds(self.plan)

    def record(
        self, kind: AuditKind, text: str, at: datetime, *, actor: str = BACKSTOP, reason: str = "", **data: Any
    ) -> Self:
        """Return the rollout with one more entry for the archive."""
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
        """Return the rollout in another stage; everything that belonged to the earlier stage ends."""
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
        """Queue a notice for each team; without teams, for the owner."""
        audiences = list(teams) or ([self.owner] if kind in (NoticeKind.HELD, NoticeKind.STUCK) else [])
        rows = {} if self.plan is None else {quota.team: quota for quota in self.plan.quotas}
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
                    reasons=self._reasons(kind, audience, row, after.get(audience)),
                    backing_gpus=None if backing is None else backing.get(audience),
                    yields=self._yields(kind, audience),
                    stage=self.stage.value,
                    shadow=self.shadow,
                    **fields,
                )
            )
        # No look tested these values before the write: the notices wait for one that has.
        unseen = tuple(n.key for n in notices) if backing is None and kind is NoticeKind.ROLLED_BACK else ()
        post = self.post.but(
            serial=self.post.serial + len(notices),
            mail=(*self.post.mail, *notices),
            unseen=(*self.post.unseen, *unseen),
        )
        return self.but(post=post)

    def _reasons(self, kind: NoticeKind, team: str, row: QuotaPlan | None, gpus: int | None) -> tuple[str, ...]:
        """Explain the value of a quota, `gpus` after what the notice reports: by the plan, or by the breach since."""
        if kind is NoticeKind.ROLLED_BACK:
            return tuple(filter(None, [self.why_set_back(team)]))
        if row is None or gpus is None:
            return ()
        # A quota that was rolled back, or that others changed, does not have the plan's value.
        explains = self.stage is Stage.PLANNED or self.baseline.values.get(team, 0) - gpus == row.cut_gpus
        return tuple(cut.reason for cut in row.cuts) if explains else ()

    def why_set_back(self, team: str) -> str:
        """Explain in one sentence how much a breach rollback takes from a quota; empty if it takes nothing."""
        if self.undo is None or team not in self.undo.taken:
            return ""
        return breach_reason(self.baseline.tree.by_team[team], self.undo.taken)

    def _yields(self, kind: NoticeKind, team: str) -> str:
        """Name the team's workloads that yield first where GPUs in use are cut, or have lost their healthy hardware."""
        if kind in (NoticeKind.PLANNED, NoticeKind.CHANGED, NoticeKind.BUFFERED):
            return cut_of_work(self.plan, team)
        if self.seen is not None and kind is NoticeKind.ROLLED_BACK:
            return beyond_of_work(self.seen.work, team, self.written.get(team))
        if self.seen is None or kind not in (NoticeKind.AT_RISK, NoticeKind.BREACH):
            return ""
        of = [work for work in self.seen.work if work.team in (self.breach_of if team == self.owner else (team,))]
        stands = {**self.baseline.values, **self.written}
        sentence = short_of_work(of, self.present_backing, stands)
        return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""

    def _moves(self, kind: NoticeKind) -> tuple[dict[str, int], dict[str, int]]:
        """Return the values before and after that a notice of this kind reports, each by team."""
        baseline = self.baseline.values
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
        """GPUs of each leaf that lack no hardware at the present quotas; None if no look has tested these values."""
        if self.seen is None or self.seen.health is None:
            return None
        if self.written.items() <= self.seen.tested.items():
            return less_shortage(self.seen.tested, self.seen.backing, self.seen.shortage)
        present, now = self.seen.reading.values, self.seen.now
        if self.shadow or not self.written.items() <= present.items():
            return None
        return now.backing if now.shortage is None else less_shortage(present, now.backing, now.shortage)
