"""Names that cross the wire, and messages that belong to no single core: the watch's and mail's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field

from models.base import Count, Model, Name, PositiveCount, Time
from models.notices import Delivery, Notice

DEPLOYMENT = "backstop"
"""The worker deployment whose versions are our builds."""
NO_LEDGER_EXIT = 3
"""The exit code of workers/stage_fleet_import.py if it reaches no ledger."""
TASK_QUEUE = "backstop"
"""The queue of workflows, and of activities that have no queue of their own below."""
GUARD_QUEUE = "backstop-guard"
"""The queue of activities that keep promises: the watch, looks, aims and effects. Nothing else takes its slots."""
NOTICE_QUEUE = "backstop-notices"
"""The queue of activities that wait for mail servers and the like."""
ROLLOUT_WORKFLOW = "ClusterRollout"
WATCH_WORKFLOW = "HealthWatch"
DESK_WORKFLOW = "LedgerDesk"
REQUEST_WORKFLOW = "QuotaRequest"
BRINGUP_WORKFLOW = "Bringup"
FLEET_WORKFLOW = "FleetRollout"
ROUND_WORKFLOW = "NoticeRound"
SOURCE = "ledger"
"""The source of health that the watch reads."""
WATCH_ID = f"health-watch/{SOURCE}"
"""The id of the watch that looks at all clusters of the source."""
FLEET_ID = "fleet-rollout"
"""The id of the only fleet rollout. Two would each keep their own pace, and nobody would limit the sum."""
STATUS_QUERY = "status"
AHEAD_QUERY = "ahead"
FLEET_STATUS_QUERY = "fleet_status"
FLEET_PLAN_QUERY = "fleet_plan"
LAUNCHED_UPDATE = "launched"
HEALTH_SIGNAL = "health_changed"
GRANT_UPDATE = "grant"
TAKE_BACK_SIGNAL = "take_back"
"""This signal refuses a command, by its update's id, if no worker has taken up the command yet."""
NOT_LAUNCHED = "it was not launched: "
"""The beginning of the error when a refused launch is queried. A query's failure has no type, only words."""
MOVES_ON = "the rollout is changing at this moment: ask again"
"""The answer of a worker that could answer a query only by guessing the time (workers/workflow_sandbox.py)."""


class SearchName:
    """Custom search attributes; Temporal reserves names like `Status`."""

    CLUSTER = "BackstopCluster"
    STAGE = "BackstopStage"
    WAVE = "BackstopWave"
    OWNER = "BackstopOwner"
    UNBACKED = "BackstopUnbacked"


SEARCH_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        SearchName.CLUSTER: "Keyword",
        SearchName.STAGE: "Keyword",
        SearchName.WAVE: "Keyword",
        SearchName.OWNER: "Keyword",
        SearchName.UNBACKED: "Int",
    }
)
"""The search attributes that a namespace must have, by name, each with its type in Temporal."""


def rollout_workflow_id(cluster: str) -> str:
    """Return the one id per cluster: two rollouts of it cannot run at once."""
    return f"rollout/{cluster}"


def bringup_workflow_id(cluster: str) -> str:
    """Return the one workflow id of the cluster, so that two bring-ups of it cannot run at once."""
    return f"bringup/{cluster}"


def retires_cluster(cluster: str) -> str:
    """Return the start of the id of a rollout that takes the quotas of a retired cluster to zero."""
    return f"retire-{cluster}-"


def request_workflow_id(request: str) -> str:
    return f"request/{request}"


def round_workflow_id(audience: str) -> str:
    """Return the one id per audience: two rounds never send it the same notices."""
    return f"notices/{audience}"


class RoundInput(Model):
    """The audience whose due notices are to be sent."""

    audience: Name


class TellRequest(Model):
    """Notices of one rollout, sent in one go."""

    cluster: Name
    notices: tuple[Notice, ...]


class TellAnswer(Model):
    """The outcome of each notice, by key: delivered, to be tried again, not deliverable at all, or waiting."""

    delivered: dict[str, tuple[Delivery, ...]]
    failed: dict[str, str]
    refused: dict[str, str]
    waiting: dict[str, Time] = Field(default_factory=dict)
    """By key of a notice that waits in the ledger: when it is due. A caller that needs its outcome asks again then."""
    noted: tuple[str, ...] = ()
    """Keys of notices whose outcome is already in the archive, because a round of the watch sent them."""


class WatchInput(Model):
    """The watch workflow's argument. With several `shards`, each watch looks at its part of the source's clusters."""

    interval_seconds: float = Field(default=15.0, ge=0.01, le=3600)
    tally_seconds: float = Field(default=3600.0, ge=0.1, le=86400)
    """The interval at which each cluster's numbers are added to its hourly records (tallies)."""
    runs: Count = 1
    source: Name = SOURCE
    shard: Count = 0
    shards: PositiveCount = 1
    cursor: str = ""
    """Short hashes of the cluster states that the previous call has signalled; empty: none."""

    @property
    def watch_id(self) -> str:
        """The workflow's id. It names the number of shards, so that one division is not taken for another."""
        return watch_id(self.source, self.shard, self.shards)


def watch_id(source: str, shard: int, shards: int) -> str:
    return f"health-watch/{source}" + (f"/{shard}-of-{shards}" if shards > 1 else "")


def watch_parts(one: str) -> list[str]:
    """Return the ids of all shards of the division that this watch belongs to."""
    source, _, part = one.removeprefix("health-watch/").partition("/")
    shards = part.partition("-of-")[2]
    return [watch_id(source, n, int(shards)) for n in range(int(shards))] if shards.isdecimal() else [one]
