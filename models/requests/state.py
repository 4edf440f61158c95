"""The state of one request for more quota: asked -> approved -> granted -> returned, with ways out at each step.

It is a value: what happens makes another one (models/requests/reducers.py, models/requests/commands.py). What is to be
archived and told stands in it until it has been. Source: docs/design.md, "Ports" (fence rule); ADR 0020.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from models.access.tickets import Ticketed
from models.audit_chain import BACKSTOP, AuditKind
from models.base import (
    ActorGiven,
    Count,
    GpuCount,
    Model,
    Name,
    NameGiven,
    PositiveCount,
    Text,
    Time,
    Words,
    gpus_text,
)
from models.lifecycle.outgoing import ArchivePlace, Lifecycle
from models.notices import NoticeKind
from models.planning.grants import GrantOrder, Room

_GRACE = timedelta(minutes=2)
"""What a worker that is busy, or has just begun, may need."""


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


class QuotaAsk(Ticketed):
    """What starts a request. Units: whole GPUs, more than the team has."""

    request: Text = Field(min_length=1, max_length=100, pattern=r"^[a-z0-9-]+$")
    team: NameGiven
    cluster: NameGiven
    gpus: PositiveCount
    until: Time | None = None
    """When it ends by itself; None: never."""
    namespace: ActorGiven = ""
    """On whose behalf; empty: the team's own."""
    actor: NameGiven
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
    ticketed: bool | None = Field(default=None, exclude_if=lambda so: so is None)
    """Every command needs a ticket; None: whoever assessed it did not say, and the request's own says it."""
    by_roles: bool = Field(default=False, exclude_if=lambda so: not so)
    """The access file says who decides, and not the owners."""


class RequestState(Lifecycle):
    """One request. Times are the workflow's clock, in UTC."""

    ask: QuotaAsk
    ticketed: bool = Field(default=False, exclude_if=lambda so: not so)
    """Tickets are required: roles say who may decide, and a cancel from Temporal changes nothing."""
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
    unsent: dict[str, Time] = Field(default_factory=dict, exclude_if=lambda since: not since)
    """Since when each notice of the mail has been tried in vain, by key."""
    untold: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Audiences that a notice did not reach for good."""

    @property
    def has_ended(self) -> bool:
        """Nothing more happens to it by itself, and no command can be given."""
        if self.stage is RequestStage.GRANTED:
            return self.ask.until is None
        return self.stage not in (RequestStage.ASKED, RequestStage.APPROVED, RequestStage.RETURNING)

    @property
    def ends_on(self) -> datetime | None:
        """When time alone ends it; None: never, or not any more."""
        return None if self.has_ended or self.stage is RequestStage.RETURNING else self.ask.until

    def is_overdue(self, now: datetime) -> bool:
        """Its grant should be back, or on its way, and nobody has said so: whoever cared for it may be gone."""
        if self.stage is RequestStage.RETURNING:
            return now - self.changed_at >= _GRACE
        return self.stage is RequestStage.GRANTED and self.ends_on is not None and now - self.ends_on >= _GRACE

    @property
    def wanted_text(self) -> str:
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

    def enter_stage(self, stage: RequestStage, at: datetime, sentence: str, **changes: Any) -> Self:
        return self.but(stage=stage, changed_at=at, said=sentence, **changes)

    @property
    def place(self) -> ArchivePlace:
        return ArchivePlace(f"request/{self.ask.request}", self.ask.cluster)

    def record(self, kind: AuditKind, text: str, at: datetime, **more: Any) -> Self:
        facts = {"request": self.ask.request, "team": self.ask.team, "stage": self.stage.value}
        return super().record(kind, f"request {self.ask.request}: {text}", at, **facts | more)

    def notify(self, audiences: tuple[str, ...], text: str, *commands: tuple[str, str]) -> Self:
        """With a notice to each in the mail."""
        lines = [{"does": does, "line": line} for does, line in commands]
        return self.with_notices(
            self.place.prefix,
            "told",
            dict.fromkeys(audiences),
            kind=NoticeKind.REQUEST,
            cluster=self.ask.cluster,
            owner=", ".join(self.assessment.owners) or "the cluster's owner",
            detail=text,
            facts={"to_owner": bool(commands), **({"commands": lines} if commands else {})},
        )

    @property
    def askers(self) -> tuple[str, str]:
        """Who is told what becomes of it."""
        return self.ask.team, self.ask.actor


def any_of(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))
