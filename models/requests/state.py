"""The state of one request for more quota: asked -> approved -> granted -> returned, with ways out at each step.

The state is a value: events make another one (models/requests/reducers.py, models/requests/commands.py). It keeps
archive entries and notices until they have gone out. Source: docs/design.md, "Ports" (fence rule); ADR 0020.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from models.access.tickets import Ticketed
from models.audit_chain import BACKSTOP, AuditKind
from models.base import ActorGiven, Count, GpuCount, Model, Name, NameGiven, PositiveCount, Text, Time, Words
from models.lifecycle.outgoing import ArchivePlace, Lifecycle
from models.notices import NoticeKind
from models.planning.grants import GrantOrder, Room
from models.texts import gpus_text

_GRACE = timedelta(minutes=2)
"""A request is overdue only after this time, which a worker may need when it is busy or has just started."""


class RequestStage(StrEnum):
    ASKED = "asked"
    """The request waits for the cluster's owner."""
    APPROVED = "approved"
    """The request waits until its order can be written."""
    GRANTED = "granted"
    RETURNING = "returning"
    """The grant is over or withdrawn, and waits until it can be taken back."""
    RETURNED = "returned"
    REFUSED = "refused"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"
    LAPSED = "lapsed"
    """The end date came before anybody granted it."""
    LEFT = "left"
    """The grant could not be taken back, because others changed the quota: a person is needed."""


class QuotaAsk(Ticketed):
    """The input that starts a request. Units: whole GPUs, beyond what the team has."""

    request: Text = Field(min_length=1, max_length=100, pattern=r"^[a-z0-9-]+$")
    team: NameGiven
    cluster: NameGiven
    gpus: PositiveCount
    until: Time | None = None
    """Time at which the grant ends by itself; None: never."""
    namespace: ActorGiven = ""
    """The namespace for which the GPUs are requested; empty: the team's own."""
    actor: NameGiven
    reason: Words = ""

    def line(self, gpus: int, until: str) -> str:
        """Return the line, as people type it, that asks for this many GPUs with the same limits."""
        words = f"backstop request new {shlex.quote(self.team)} {shlex.quote(self.cluster)} {gpus}"
        ends = "" if self.until is None else f" --until {until}"
        return f"{words}{ends}{f' --namespace {shlex.quote(self.namespace)}' if self.namespace else ''}"


class Elsewhere(Model):
    """Another cluster, and the GPUs it could promise. Units: whole GPUs."""

    cluster: Name
    gpu_model: str | None = None
    headroom_gpus: GpuCount
    """GPUs left under the cluster's ceiling, for all who ask."""
    has_quota: bool
    """The team has a quota there that can be raised."""


class Assessment(Model):
    """The answer whether a request fits now and, if not, the alternatives. Units: whole GPUs."""

    fits: bool
    why: str = ""
    """Why the request does not fit, in one sentence."""
    room: Room | None = None
    quota_gpus: GpuCount = 0
    owners: tuple[str, ...] = ()
    assessed: bool = False
    """Whether alternatives were looked for; they are not if the team may not ask."""
    flex_gpus: GpuCount = 0
    """The share of flex that the team could roughly expect if it asked for that many GPUs more."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """Other clusters, those with room first."""
    ticketed: bool | None = Field(default=None, exclude_if=lambda so: so is None)
    """Whether every command needs a ticket; None: unknown, so it does if the request itself came with a ticket."""
    by_roles: bool = Field(default=False, exclude_if=lambda so: not so)
    """The access file, and not the list of owners, says who decides."""


class RequestState(Lifecycle):
    """A request. Times are the workflow's clock, in UTC."""

    ask: QuotaAsk
    ticketed: bool = Field(default=False, exclude_if=lambda so: not so)
    """Tickets are required: roles say who may decide, and a cancel from Temporal changes nothing."""
    stage: RequestStage = RequestStage.ASKED
    asked_at: Time
    changed_at: Time
    assessment: Assessment
    decided_by: str = ""
    decision: str = ""
    """The reason given with the decision."""
    waits_for: str = ""
    """The obstacle at the last try; empty: none."""
    raised: dict[str, GpuCount] = Field(default_factory=dict)
    """GPUs that the grant added, by team; the quotas above these teams rise by the same."""
    hands: dict[str, Count] = Field(default_factory=dict)
    """Change markers of the raised quotas, by team: while they stay the same, nobody else has changed the quotas."""
    returned_by: str = BACKSTOP
    """Who ended the grant: a person, or Backstop itself on the end date."""
    granted_at: Time | None = None
    said: str = ""
    """The present state or the outcome, in words."""
    could: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Who may decide on the request, by the access file in force. Lists of requests fill this in; workflows do not."""
    fence: Count = 0
    """The number of writes that the request made itself, because no rollout was open."""
    unsent: dict[str, Time] = Field(default_factory=dict, exclude_if=lambda since: not since)
    """By key, the time since which delivery of a notice has failed."""
    untold: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Audiences whose notice could not be delivered."""

    @property
    def has_ended(self) -> bool:
        """True if nothing more happens to it by itself, and it takes no command."""
        if self.stage is RequestStage.GRANTED:
            return self.ask.until is None
        return self.stage not in (RequestStage.ASKED, RequestStage.APPROVED, RequestStage.RETURNING)

    @property
    def ends_on(self) -> datetime | None:
        """Time at which time alone ends it; None: never, or no longer."""
        return None if self.has_ended or self.stage is RequestStage.RETURNING else self.ask.until

    def is_overdue(self, now: datetime) -> bool:
        """Return whether its grant should be back or on its way, and nobody has said so: its workflow may be gone."""
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
        """The order to write for it."""
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
        """Queue a notice to each audience."""
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
        """The audiences that are notified of the outcome."""
        return self.ask.team, self.ask.actor


def any_of(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))
