"""Messages about a request for more quota."""

from __future__ import annotations

from pydantic import Field

from models.access.warrants import Spent
from models.base import Count, GpuCount, Model, Name, PositiveCount, Time
from models.planning.grants import GrantOrder, GrantOutcome
from models.requests.state import QuotaAsk, RequestState
from models.rollout.effects import Change


class RequestInput(Model):
    """The workflow's one argument: the ask, and the state that a run hands to the next."""

    ask: QuotaAsk
    state: RequestState | None = None
    spent: tuple[Spent, ...] = Field(default=(), exclude_if=lambda spent: not spent)
    """Tickets that recent commands used; none is accepted twice."""


class AssessRequest(Model):
    ask: QuotaAsk
    at: Time


class PrepareRequest(Model):
    """A request to prepare the write of an order. `fence`: its number among the request's own writes."""

    order: GrantOrder
    cluster: Name
    namespace: str = ""
    hands: dict[str, Count] = Field(default_factory=dict)
    """When ending a grant: the change markers that its quotas must still have."""
    fence: PositiveCount
    at: Time


class Prepared(Model):
    """The way to write an order now: through the open rollout, by this change, or not at all."""

    through: bool = False
    change: Change | None = None
    raised: dict[str, GpuCount] = Field(default_factory=dict)
    hands: dict[str, Count] = Field(default_factory=dict)
    outcome: GrantOutcome = GrantOutcome.LATER
    """If the order cannot be written: whether to try again later."""
    said: str = ""


class ThroughRequest(Model):
    """An order for the rollout that is open in the cluster."""

    order: GrantOrder
    cluster: Name


class OwnersRequest(Model):
    cluster: Name


class Owners(Model):
    """The people who decide on requests for a cluster today."""

    names: tuple[str, ...]


class KeepRequest(Model):
    request: RequestState
