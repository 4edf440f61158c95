"""What crosses the wire for a request for more quota."""

from __future__ import annotations

from pydantic import Field

from models.access.warrants import Spent
from models.base import Count, GpuCount, Model, Name, PositiveCount, Time
from models.planning.grants import GrantOrder, GrantOutcome
from models.requests.state import QuotaAsk, RequestState
from models.rollout.effects import Change


class RequestInput(Model):
    """The workflow's one argument: what is asked for, and the state that a run hands to the next."""

    ask: QuotaAsk
    state: RequestState | None = None
    spent: tuple[Spent, ...] = Field(default=(), exclude_if=lambda spent: not spent)
    """Tickets that its commands have used of late."""


class AssessRequest(Model):
    ask: QuotaAsk
    at: Time


class PrepareRequest(Model):
    """A try to write an order. `fence`: its number among the request's own writes."""

    order: GrantOrder
    cluster: Name
    namespace: str = ""
    hands: dict[str, Count] = Field(default_factory=dict)
    """Of a grant that ends: whose quotas they must still be."""
    fence: PositiveCount
    at: Time


class Prepared(Model):
    """How an order can be written now: by the rollout that is open, by this change, or not."""

    through: bool = False
    change: Change | None = None
    raised: dict[str, GpuCount] = Field(default_factory=dict)
    hands: dict[str, Count] = Field(default_factory=dict)
    outcome: GrantOutcome = GrantOutcome.LATER
    """Where it cannot: whether to come again."""
    said: str = ""


class ThroughRequest(Model):
    """An order for the rollout that is open in the cluster."""

    order: GrantOrder
    cluster: Name


class OwnersRequest(Model):
    cluster: Name


class Owners(Model):
    """Who decides on requests for a cluster today."""

    names: tuple[str, ...]


class KeepRequest(Model):
    request: RequestState
