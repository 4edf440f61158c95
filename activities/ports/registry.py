"""The port of Backstop's own book: rollouts, clusters, quota requests, the archive and fleet rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from pydantic import Field

from activities.ports.by_cluster import ByCluster
from models.audit_chain import AuditEntry, ChainedEntry, ChainHead
from models.base import Model, Name, Time
from models.cluster.readings import LimitMode
from models.cluster.snapshot import Snapshot
from models.fleet.archived_state import KeptFleet
from models.fleet.messages import Noted
from models.planning.plan import Envelope
from models.questions import ClusterFacts
from models.requests.state import RequestState
from models.rollout.effects import Fence
from models.rollout.messages import RecordRequest
from models.rollout.stages import Stage
from models.status_questions import Overview


class OpenRollout(Model):
    """A rollout as the registry knows it."""

    rollout: str
    cluster: Name
    owner: str
    opened_at: Time
    baseline: Snapshot
    shadow: bool = False
    stage: Stage = Stage.PLANNED
    last_counter: int = 0
    """The highest fence counter that this rollout has used."""
    modes: dict[str, LimitMode] = Field(default_factory=dict)
    """The baseline's modes by team, which an undo restores."""
    adopted_from: str = ""
    """The lost rollout whose effects this rollout took over; empty: none."""
    written: dict[str, int] = Field(default_factory=dict)
    """For an adopter: the values last written, by team, by the lost rollout and those that it had adopted."""
    fleet: str = ""
    """The fleet rollout that launched it; empty: none."""
    ceiling: dict[str, Any] = Field(default_factory=dict)
    """The settings of its own policy that its ceiling comes from, once it has noted them."""


class RolloutsPort(Protocol):
    """The rollouts that are and were open: their baselines, and the states that they recorded last."""

    def open_rollout(self, opening: OpenRollout, adopt: bool, fence: int | None = None) -> OpenRollout:
        """Open the rollout and keep its baseline. Repeating it with the same id and `opened_at` changes nothing.

        Effects that an earlier, lost rollout left behind are adopted (its baseline is returned and its fences are dead
        from now on) or, without `adopt`, refused. `fence`: the last effect in the history that opens it. If this very
        rollout has later ones, it adopts itself, under another name. Errors: Refusal, also for one that has ended.
        """

    def keep_baseline(self, fence: Fence, baseline: Snapshot) -> None:
        """Replace an open rollout's baseline: a grant is part of what an undo restores. Idempotent.

        `fence`: of the effect that it comes with. After a later effect of the rollout a call changes nothing.
        """

    def open_rollout_of(self, cluster: str) -> OpenRollout | None:
        """Return the open rollout of the cluster, with its baseline."""

    def read_adopted(self, rollout: str) -> str:
        """Return the lost rollout whose effects this one took over; empty for none, and for an unknown one."""

    def record(self, request: RecordRequest) -> None:
        """Show the stage and what a person has to do; archive the entries, as `archive` does.

        `ended` closes the rollout, `completed` moves a ramp on (once). Errors: Refusal for an unknown rollout; its
        entries are archived all the same.
        """

    def overview(self, *, noted: bool = False, quiet: bool = True) -> tuple[Overview, ...]:
        """Return the open rollouts and ended shadows, by cluster; `noted` and `quiet`: as in `OpenRollouts`."""

    def open_clusters(self) -> ByCluster[tuple[Stage, bool]]:
        """Return (stage, shadow) of clusters with an open rollout, by cluster, for the watch."""

    def noted_rollouts(self, rollouts: Sequence[str], fleet: str = "") -> dict[str, Noted]:
        """Return these rollouts, and those of a fleet rollout, as recorded last, by id; unknown ones are left out."""

    def newest(self, clusters: Sequence[str]) -> dict[str, Noted]:
        """Return the open rollout of each of these clusters that has one."""


class ClustersPort(Protocol):
    def names(self) -> tuple[str, ...]:
        """Return every cluster of the ledger."""

    def facts(self, cluster: str) -> ClusterFacts:
        """Return the cluster's settings. Errors: Refusal for an unknown cluster."""

    def facts_of(self, clusters: Sequence[str]) -> ByCluster[ClusterFacts]:
        """Return the settings of each known cluster, in one call, without its contacts."""


class RequestsPort(Protocol):
    def keep_request(self, request: RequestState, entries: Sequence[AuditEntry] = ()) -> None:
        """Store the request as it is now, and archive the entries, once per key. Idempotent."""

    def requests(self, cluster: str = "", *, ended: bool = False) -> tuple[RequestState, ...]:
        """Return requests for more quota, by the time they were made; ended ones only if asked for."""

    def request(self, request: str) -> RequestState | None:
        """Return one request by its id."""


class ArchivePort(Protocol):
    def archive(self, entries: Sequence[AuditEntry]) -> ChainHead | None:
        """Archive the entries, once per key, each at the end of its cluster's chain."""

    def entries_after(self, cluster: str, after_seq: int, limit: int) -> tuple[ChainedEntry, ...]: ...

    def find_archived(self, keys: Sequence[str]) -> frozenset[str]:
        """Return those of these entries' keys that are archived."""

    def chain_head(self, cluster: str) -> ChainHead | None: ...


class RegistryPort(RolloutsPort, ClustersPort, RequestsPort, ArchivePort, Protocol):
    """Backstop's own book, whole. It is the ledger database even if another system holds the quotas."""

    def reserve_moves(
        self, fence: Fence, cluster: str, gpus: int, limit: int, now: datetime, day_limit: int | None = None
    ) -> None:
        """Book this many moved GPUs, once per fence.

        Errors: BlastRadius past `limit` in an hour or `day_limit` in a day, per cluster and over the fleet, with the
        time at which there is room for it.
        """

    def reserve_breach(self, cluster: str, most_clusters: int | None, now: datetime) -> None:
        """Book the cluster's breach rollback, under one lock for the fleet. Within the hour it is booked once.

        Errors: BlastRadius past `most_clusters` clusters in an hour; None: a person has lifted the limit.
        """

    def release_breach(self, cluster: str) -> None:
        """Remove the booking of a rollback that was not made."""

    def give_back_moves(self, fence: Fence) -> None:
        """Remove the booking for this fence, unless its write took effect."""

    def booked_gpus(self, now: datetime) -> tuple[int, int]:
        """Return the GPUs that were moved over the fleet within the last hour, and within the last day."""

    def kept_fleet(self) -> KeptFleet | None:
        """Return the archived state of the fleet rollout that was launched last; None: there never was one."""

    def of_fleet(self, fleet: str) -> dict[str, tuple[Noted, datetime]]:
        """Return the newest rollout of this fleet rollout in each cluster, and when it was opened."""

    def keep_fleet_plan(self, fleet: str, envelopes: Mapping[str, Envelope]) -> None:
        """Keep the envelope of each cluster that an approval of this plan approves. Repeating it replaces all.

        Once the plan is archived a call changes nothing: it is a late attempt.
        """

    def fleet_envelope(self, fleet: str, cluster: str) -> Envelope | None:
        """Return the envelope kept for this cluster; None: there is none."""

    def fleet_envelopes(self, fleet: str, clusters: Sequence[str]) -> dict[str, Envelope]:
        """Return the envelopes kept for these clusters, as far as there are any."""
