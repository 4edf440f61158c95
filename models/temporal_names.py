"""The names that cross the wire, and the messages that belong to no one core: the watch and mail."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field

from models.base import Count, Model, Name, PositiveCount, Time
from models.notices import Delivery, Notice

DEPLOYMENT = "backstop"
"""The worker deployment whose versions are our builds."""


NO_LEDGER_EXIT = 3
"""The exit code of workers/stage_import.py where it reaches no ledger."""


TASK_QUEUE = "backstop"
"""Of workflows, and of activities that have no queue of their own below."""


GUARD_QUEUE = "backstop-guard"
"""Of what keeps promises: the watch, looks, aims and effects. Nothing else takes its slots."""


NOTICE_QUEUE = "backstop-notices"
"""Of what waits for people's servers."""


ROLLOUT_WORKFLOW = "ClusterRollout"


WATCH_WORKFLOW = "HealthWatch"


DESK_WORKFLOW = "LedgerDesk"


REQUEST_WORKFLOW = "QuotaRequest"


ROUND_WORKFLOW = "NoticeRound"


SOURCE = "ledger"
"""Where health comes from."""


WATCH_ID = f"health-watch/{SOURCE}"
"""Of the watch that looks at all clusters of the source."""


STATUS_QUERY = "status"


AHEAD_QUERY = "ahead"


LAUNCHED_UPDATE = "launched"


HEALTH_SIGNAL = "health_changed"


GRANT_UPDATE = "grant"


TAKE_BACK_SIGNAL = "take_back"
"""A command, by its update's id, is refused if no worker has taken it up yet."""


NOT_LAUNCHED = "it was not launched: "
"""How a question to a refused launch is answered: a query's failure has no type, only words."""


MOVES_ON = "the rollout is changing at this moment: ask again"
"""Why a worker does not answer a query: it would have to guess the time (workers/untimely_queries.py)."""


class SearchName:
    """Custom search attributes; `Status` and the like are taken by Temporal."""

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
"""What a namespace must have, by name: Temporal's type."""


def rollout_workflow_id(cluster: str) -> str:
    """One id per cluster, so that two rollouts of it cannot run at once."""
    return f"rollout/{cluster}"


def request_workflow_id(request: str) -> str:
    return f"request/{request}"


def round_workflow_id(audience: str) -> str:
    """One id per audience, so that two rounds never bring it the same."""
    return f"notices/{audience}"


class RoundInput(Model):
    """Who is to be told what is due."""

    audience: Name


class TellRequest(Model):
    """Notices of one rollout, sent in one go."""

    cluster: Name
    notices: tuple[Notice, ...]


class TellAnswer(Model):
    """What became of each notice, by key: delivered, to be tried again, not deliverable at all, or waiting."""

    delivered: dict[str, tuple[Delivery, ...]]
    failed: dict[str, str]
    refused: dict[str, str]
    waiting: dict[str, Time] = Field(default_factory=dict)
    """In the ledger, from which it is sent: when that is due. Whoever needs to know that it was asks again then."""
    noted: tuple[str, ...] = ()
    """What became of these is in the archive already: a round of the watch sent them."""


class WatchInput(Model):
    """The watch workflow's argument. With several `shards`, each watch looks at its part of the source's clusters."""

    interval_seconds: float = Field(default=15.0, ge=0.01, le=3600)
    tally_seconds: float = Field(default=3600.0, ge=0.1, le=86400)
    """How often each cluster is written into the tallies."""
    runs: Count = 1
    source: Name = SOURCE
    shard: Count = 0
    shards: PositiveCount = 1
    cursor: str = ""
    """What the call before has told."""

    @property
    def watch_id(self) -> str:
        """The workflow's id. It names the number of shards, so that one division is not taken for another."""
        return watch_id(self.source, self.shard, self.shards)


def watch_id(source: str, shard: int, shards: int) -> str:
    return f"health-watch/{source}" + (f"/{shard}-of-{shards}" if shards > 1 else "")


def watch_parts(one: str) -> list[str]:
    """The ids of all shards of the division that this watch belongs to."""
    source, _, part = one.removeprefix("health-watch/").partition("/")
    shards = part.partition("-of-")[2]
    return [watch_id(source, n, int(shards)) for n in range(int(shards))] if shards.isdecimal() else [one]
