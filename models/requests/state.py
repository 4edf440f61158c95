"""A request for more quota: its life, who may say what to it, and what people are told.

asked -> approved -> granted -> returned, with ways out at each step. Every function answers a new state; what is to be
archived and told stands in it until it has been. Source: DESIGN.md, "Ports" (fence rule); ADR 0020.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from models.audit import BACKSTOP, AuditEntry, AuditKind
from models.base import Count, GpuCount, Model, Name, PositiveCount, Text, Time, Words, gpus_text
from models.notices import Notice, NoticeKind
from models.planning.grants import Granted, GrantOrder, GrantOutcome, Room

LONGEST_WAIT = timedelta(minutes=1)
"""Between two tries of what is in the way of a grant."""


class RequestStage(StrEnum):
    ASKED = "asked"
    """It waits for the cluster's owner."""
    APPROVED = "approved"
    """It waits for what is in the way of writing it."""
    GRANTED = "granted"
    RETURNING = "returning"
    """Its time is over, or it was withdrawn: it waits for what is in the way of taking it back."""
    RETURNED = "returned"
    REFUSED = "refused"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"
    LAPSED = "lapsed"
    """Its day came before anybody granted it."""
    LEFT = "left"
    """It was to be given back, and others had changed the quota since: a person is needed."""


class RequestCommand(StrEnum):
    APPROVE = "approve"
    DECLINE = "decline"
    WITHDRAW = "withdraw"


class RequestOrder(Model):
    """One command from one person."""

    actor: Text = Field(min_length=1, max_length=200)
    reason: Words = ""


class QuotaAsk(Model):
    """What starts a request. Units: whole GPUs, more than the team has."""

    request: Text = Field(min_length=1, max_length=100, pattern=r"^[a-z0-9-]+$")
    team: Name
    cluster: Name
    gpus: PositiveCount
    until: Time | None = None
    """When it ends by itself; None: never."""
    namespace: Text = Field(default="", max_length=200)
    """On whose behalf; empty: the team's own."""
    actor: Name
    reason: Words = ""


class Elsewhere(Model):
    """Another cluster, and what it could promise. Units: whole GPUs."""

    cluster: Name
    gpu_model: str | None = None
    headroom_gpus: GpuCount
    """Under its ceiling, for all that ask."""
    has_quota: bool
    """The team holds one there, which can be raised."""


class Assessment(Model):
    """Whether a request fits now; where it does not, what else there is. Units: whole GPUs."""

    fits: bool
    why: str = ""
    """Why not, in one sentence."""
    room: Room | None = None
    quota_gpus: GpuCount = 0
    owners: tuple[str, ...] = ()
    assessed: bool = False
    """What else there is was looked for; not where the team may not ask."""
    flex_gpus: GpuCount = 0
    """What its share of flex would be, did it ask for so many more: about so much it may expect."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """Those that have room first; ranked."""


class RequestState(Model):
    """One request. Times are the workflow's clock, in UTC."""

    ask: QuotaAsk
    stage: RequestStage = RequestStage.ASKED
    asked_at: Time
    changed_at: Time
    assessment: Assessment
    decided_by: str = ""
    decision: str = ""
    """The reason that was given with it."""
    waits_for: str = ""
    """What is in the way, as of the last try."""
    raised: dict[str, GpuCount] = Field(default_factory=dict)
    """What was written, by team: the quotas above it rise with it."""
    hands: dict[str, Count] = Field(default_factory=dict)
    """Of what was raised, by team: while these are the same nobody else has changed the quotas."""
    returned_by: str = BACKSTOP
    """Who had it given back; Backstop itself where its day came."""
    granted_at: Time | None = None
    said: str = ""
    """How it ended, or stands."""
    fence: Count = 0
    """Counts its own writes, where no rollout is open."""
    serial: Count = 0
    outbox: tuple[AuditEntry, ...] = Field(default=(), exclude_if=lambda rows: not rows)
    mail: tuple[Notice, ...] = Field(default=(), exclude_if=lambda rows: not rows)

    @property
    def ended(self) -> bool:
        """Nothing more happens to it by itself, and no command can be given."""
        if self.stage is RequestStage.GRANTED:
            return self.ask.until is None
        return self.stage not in (RequestStage.ASKED, RequestStage.APPROVED, RequestStage.RETURNING)

    @property
    def wants(self) -> str:
        """The request in a few words."""
        until = "" if self.ask.until is None else f" until {self.ask.until:%Y-%m-%d %H:%MZ}"
        return f"{gpus_text(self.ask.gpus)} more for {self.ask.team} in {self.ask.cluster}{until}"

    @property
    def order(self) -> GrantOrder:
        """What is to be written for it."""
        ends = self.stage is RequestStage.RETURNING
        return GrantOrder(
            request=self.ask.request,
            team=self.ask.team,
            gpus=self.ask.gpus,
            raised=self.raised if ends else {},
            actor=self.returned_by if ends else self.decided_by,
            reason=self.said if ends else self.decision,
        )

    def but(self, **changes: Any) -> Self:
        return self.model_copy(update=changes)

    def noting(
        self, text: str, at: datetime, *, actor: str = BACKSTOP, reason: str = "", refused: bool = False, **data: Any
    ) -> Self:
        """With one more entry for the archive."""
        number = self.serial + 1
        entry = AuditEntry(
            key=f"request/{self.ask.request}/{number:06d}",
            cluster=self.ask.cluster,
            at=at,
            kind=AuditKind.COMMAND,
            actor=actor,
            text=f"request {self.ask.request}: {text}",
            reason=reason,
            refused=refused,
            data={"request": self.ask.request, "team": self.ask.team, "stage": self.stage.value, **data},
        )
        return self.but(serial=number, outbox=(*self.outbox, entry))

    def telling(self, audiences: tuple[str, ...], text: str, *commands: tuple[str, str]) -> Self:
        """With a notice to each in the mail."""
        found = []
        for number, audience in enumerate(dict.fromkeys(audiences), start=self.serial + 1):
            lines = [{"does": does, "line": line} for does, line in commands]
            found.append(
                Notice(
                    key=f"request/{self.ask.request}/{number:06d}/told",
                    kind=NoticeKind.REQUEST,
                    cluster=self.ask.cluster,
                    audience=audience,
                    owner=", ".join(self.assessment.owners) or "the cluster's owner",
                    detail=text,
                    facts={"to_owner": bool(commands), **({"commands": lines} if commands else {})},
                )
            )
        return self.but(serial=self.serial + len(found), mail=(*self.mail, *found))


def opened(ask: QuotaAsk, found: Assessment, now: datetime) -> RequestState:
    """A request at its start: it waits for the owner, or is refused at once with what else there is."""
    if ask.until is not None and ask.until <= now:
        found = found.model_copy(update={"fits": False, "why": f"its day, {ask.until:%Y-%m-%d %H:%MZ}, is past"})
    state = RequestState(ask=ask, asked_at=now, changed_at=now, assessment=found)
    if not found.fits:
        refused = state.but(stage=RequestStage.REFUSED, said=found.why)
        return refused.noting(
            f"{state.wants}: refused: {found.why}", now, actor=ask.actor, reason=ask.reason, refused=True
        )
    state = state.but(said=f"waits for {_any_of(found.owners)} to approve it")
    behalf = f" on behalf of {ask.namespace}" if ask.namespace else ""
    asked = state.noting(f"{state.wants}: asked for{behalf}", now, actor=ask.actor, reason=ask.reason, gpus=ask.gpus)
    text = f"{ask.actor} asks for {state.wants}{behalf}." + (f" Why: {ask.reason}" if ask.reason else "")
    line = f"backstop request {{}} {ask.request} --reason '...'"
    return asked.telling(
        found.owners,
        text,
        ("Approve it", line.format("approve")),
        ("Decline it", line.format("decline")),
    )


def out_of_place(state: RequestState, command: RequestCommand, order: RequestOrder) -> str | None:
    """Why the command has no place now, whoever gives it; None where it has."""
    stage = state.stage
    if state.ended or stage is RequestStage.RETURNING:
        for_good = ": the quota is to be lowered like any other" if stage is RequestStage.GRANTED else ""
        return f"request {state.ask.request} is {stage}: {state.said}{for_good}"
    if not order.reason.strip():
        return f"{command} needs a reason"
    if command is not RequestCommand.WITHDRAW and stage is not RequestStage.ASKED:
        return f"request {state.ask.request} is {stage} already: {state.said}"
    return None


def refusal(state: RequestState, command: RequestCommand, order: RequestOrder, owners: tuple[str, ...]) -> str | None:
    """Why the command cannot be taken now, in one sentence; None when it can. `owners`: of the cluster, today."""
    why = out_of_place(state, command, order)
    if why is not None:
        return why
    if command is RequestCommand.WITHDRAW:
        if order.actor in (state.ask.actor, *owners):
            return None
        return f"{order.actor} cannot withdraw it: that is for {_any_of((state.ask.actor, *owners))}"
    if order.actor not in owners:
        whom = _any_of(owners) or "for an owner to be named in its policy"
        return f"{order.actor} does not own {state.ask.cluster}: ask {whom}"
    return None


def obeyed(state: RequestState, command: RequestCommand, order: RequestOrder, now: datetime) -> RequestState:
    """The request after a command that is not refused."""

    def noted(changed: RequestState, text: str) -> RequestState:
        return changed.noting(text, now, actor=order.actor, reason=order.reason)

    told = (state.ask.team, state.ask.actor)
    match command:
        case RequestCommand.APPROVE:
            approved = state.but(decided_by=order.actor, decision=order.reason, said="is being written")
            return noted(_at(approved, RequestStage.APPROVED, now), "approved")
        case RequestCommand.DECLINE:
            declined = _at(state, RequestStage.DECLINED, now).but(
                decided_by=order.actor, decision=order.reason, said=f"declined by {order.actor}: {order.reason}"
            )
            text = f"{order.actor} declines your request for {state.wants}: {order.reason}"
            return noted(declined, "declined").telling(told, text)
        case RequestCommand.WITHDRAW:
            said = f"withdrawn by {order.actor}: {order.reason}"
            if state.stage is RequestStage.GRANTED:
                back = _at(state, RequestStage.RETURNING, now).but(said=said, returned_by=order.actor)
                return noted(back, "withdrawn: it is given back")
            return noted(_at(state, RequestStage.WITHDRAWN, now).but(said=said), "withdrawn")


def time_passed(state: RequestState, now: datetime) -> RequestState:
    """Its day has come: what was granted is given back, what was not is over."""
    if state.ask.until is None or now < state.ask.until or state.ended:
        return state
    if state.stage is RequestStage.GRANTED:
        said = f"its day has come ({state.ask.until:%Y-%m-%d %H:%MZ}): it is given back"
        return _at(state, RequestStage.RETURNING, now).but(said=said).noting(said, now)
    if state.stage is RequestStage.RETURNING:
        return state
    waited = f", which waited for {state.waits_for}" if state.waits_for else ""
    said = f"its day came before it was granted{waited}"
    lapsed = _at(state, RequestStage.LAPSED, now).but(said=said).noting(said, now)
    return lapsed.telling((state.ask.team, state.ask.actor), f"Your request for {state.wants} is over: {said}.")


def answered(state: RequestState, answer: Granted, now: datetime) -> RequestState:
    """After a try to write it, or to take it back."""
    told = (state.ask.team, state.ask.actor)
    if answer.outcome is GrantOutcome.LATER:
        if state.waits_for == answer.said:
            return state
        return state.but(waits_for=answer.said, said=f"waits: {answer.said}").noting(f"waits: {answer.said}", now)
    state = state.but(waits_for="")
    done, back = answer.outcome is GrantOutcome.DONE, state.stage is RequestStage.RETURNING
    if back and done:
        ended = _at(state, RequestStage.RETURNED, now).but(said=f"given back ({answer.said})")
        text = f"{gpus_text(state.ask.gpus)} of the quota of {state.ask.team} in {state.ask.cluster} are given back."
        return ended.noting(ended.said, now, lowered=state.raised).telling(told, text)
    if back:
        left = _at(state, RequestStage.LEFT, now).but(said=f"not given back: {answer.said}")
        text = f"The grant of {state.wants} is over and was not taken back: {answer.said}. Somebody must look at it."
        return left.noting(f"not given back: {answer.said}", now).telling((*state.assessment.owners, *told), text)
    if done:
        until = "for good" if state.ask.until is None else f"until {state.ask.until:%Y-%m-%d %H:%MZ}"
        granted = _at(state, RequestStage.GRANTED, now).but(
            raised=answer.raised,
            hands=answer.hands,
            granted_at=now,
            said=f"granted {until}, approved by {state.decided_by}",
        )
        text = f"Your request for {state.wants} is granted by {state.decided_by}: {state.decision}"
        return granted.noting(f"granted {until} ({answer.said})", now, raised=answer.raised).telling(told, text)
    refused = _at(state, RequestStage.REFUSED, now).but(said=f"it fits no more: {answer.said}")
    text = f"Your request for {state.wants} was approved and cannot be granted: {answer.said}"
    return refused.noting(f"refused: {answer.said}", now, refused=True).telling((*told, *state.assessment.owners), text)


def _at(state: RequestState, stage: RequestStage, now: datetime) -> RequestState:
    return state.but(stage=stage, changed_at=now)


def _any_of(names: tuple[str, ...]) -> str:
    return " or ".join(dict.fromkeys(names))


# --- what crosses the wire ---------------------------------------------------------------------
