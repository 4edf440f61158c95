"""Takes a retired cluster out of the fleet.

An ordinary rollout, with its notice and its guard, lowers the quotas to 0: its policy keeps as many GPUs spare as are
installed, so that C = 0, and the quotas' floors are removed before it is launched. The person who retires the cluster
approves the plan. Until the rollout is monitored it can still restore the quotas. Then, when no job runs, it is closed,
and the cluster is removed as `fleet remove` does. Source: docs/adr/0053.
"""

from __future__ import annotations

import logging
import shlex
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from activities.clock import Clock, utc_now
from activities.ports.bringup import BringupLedger, RolloutDoor
from activities.ports.clusters import ClusterPorts
from activities.ports.quota_systems import SchedulerPort
from activities.ports.registry import OpenRollout
from activities.rollout.cluster_calls import ClusterActivities
from activities.tickets.warrants import Warrants
from models.audit_chain import BACKSTOP, AuditEntry, AuditKind, Signature
from models.bringup.messages import BringupRow, WindDownRequest, WoundDown
from models.bringup.state import bringup_key
from models.cluster.quota import QuotaTree
from models.errors import BackstopError, Refusal, Unavailable
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage, command_line
from models.temporal_names import retires_cluster

log = logging.getLogger(__name__)

_LEAVES_WITHIN = timedelta(hours=1)
"""How long a retirement whose deadline came before the rollout's end waits for that end."""
_OUT = WoundDown(quota_gpus=0, jobs=0, said="it is out of the fleet")


@dataclass(eq=False)
class BringupExit:
    ledger: BringupLedger
    ports: ClusterPorts
    schedulers: SchedulerPort
    clusters: ClusterActivities
    rollouts: RolloutDoor
    warrants: Warrants | None = None
    now: Clock = utc_now

    def wind_down(self, request: WindDownRequest) -> WoundDown:
        """Go on with the retirement; called until no quota and no job is left and the cluster is out of the fleet.

        Errors: Refusal if a person has to make way; Unavailable while a rollout is being closed.
        """
        cluster = request.cluster
        came_late = request.number > 0 and self.ledger.is_over(cluster, request.number)
        if came_late or not self.ledger.is_in_fleet(cluster):
            return _OUT
        opened = self.ports.registry.open_rollout_of(cluster)
        stands, running = self._assigned_gpus(cluster), self._count_running(request)
        if opened is not None and not opened.rollout.startswith(retires_cluster(cluster)):
            return self._make_way(request, opened, running.but(quota_gpus=stands))
        if opened is None and stands:
            self._launch(request, f"{retires_cluster(cluster)}{request.at:%Y%m%d%H%M%S}", stands)
            return running.but(quota_gpus=stands, said="Backstop has launched a rollout that sets all quotas to 0")
        if opened is not None and (opened.stage is not Stage.MONITORED or stands):
            if opened.stage is Stage.PLANNED:
                self._launch(
                    request, opened.rollout, stands
                )  # an earlier call may have died before it approved the plan
            back = max(0, opened.baseline.tree.assigned_gpus() - stands)
            return running.but(quota_gpus=stands + back, back_gpus=back, said=self._stage_of(opened))
        if running.is_empty:
            running = running.but(teams=self._count_teams_using(request))  # asked again: to go on ends jobs
        if not running.is_empty:
            return running.but(said="all quotas are 0; Backstop waits for running jobs to end")
        if opened is not None:
            self._close(request, opened)
        by = Signature(request.actor, request.at, self._key(cluster, "leaves"), request.reason)
        self.ledger.leave_fleet(cluster, by)
        return _OUT

    def finish_retirement(self, row: BringupRow) -> None:
        """Take the cluster out of the fleet also if a deadline overtook its rollout.

        If only a person can end what keeps it in, its archive says so. Errors: Unavailable while its rollout ends.
        """
        cluster = row.cluster
        came_late = row.number < self.ledger.number(cluster)
        if came_late or not self.ledger.is_in_fleet(cluster):
            return
        self._retire_warrant(cluster)  # raises unless a person's command retires it
        opened = self.ports.registry.open_rollout_of(cluster)
        if opened is not None:
            closes = opened.stage in (Stage.MONITORED, Stage.ROLLED_BACK, Stage.STUCK)
            if opened.stage is not Stage.ROLLING_BACK:
                word = CommandRequest(
                    actor=row.owner, reason=f"{cluster} is retired", warrant=self._retire_warrant(cluster)
                )
                self.rollouts.command(cluster, Command.CLOSE if closes else Command.ABORT, word)
            if self.now() - row.stage_at < _LEAVES_WITHIN:
                raise Unavailable(f"rollout {opened.rollout} is being ended")
            return
        try:
            self.ledger.leave_fleet(cluster, Signature(row.owner, row.stage_at, self._key(cluster, "leaves")))
        except Refusal as error:
            log.warning("%s is retired, but stays in the fleet: %s", cluster, error.message)
            stays = AuditEntry(
                key=self._key(cluster, "stays"),
                cluster=cluster,
                at=row.stage_at,
                kind=AuditKind.HOLD,
                actor=BACKSTOP,
                text=f"retired, but still in the fleet: {error.message}; "
                f"after that, run `backstop fleet remove {shlex.quote(cluster)}`",
            )
            self.ports.registry.archive([stays])

    def _make_way(self, request: WindDownRequest, opened: OpenRollout, there: WoundDown) -> WoundDown:
        """Close another rollout that is monitored; ask a person to end any other."""
        if opened.stage is Stage.MONITORED and not opened.shadow:
            self._close(request, opened)
        sentence, line = self._stage_of(opened), command_line(Command.ABORT, request.cluster)
        if not there.quota_gpus:
            raise Refusal(f"{sentence}: end that rollout (`{line}`), then retry")
        waits = "and the retirement waits for that rollout: Backstop closes it once it is monitored"
        sentence = f"{sentence}, {waits}; `{line}` ends it now"
        return there.but(said=sentence)

    def _launch(self, request: WindDownRequest, rollout: str, stands: int) -> None:
        """Launch the rollout to nothing, and approve its plan. Errors: Refusal."""
        cluster = request.cluster
        key = self._key(cluster, f"floors/{rollout}")
        self.ledger.open_floors(cluster, Signature(request.actor, request.at, key, request.reason))
        own = self.ports.registry.facts(cluster).policy
        snapshot, _ = self.clusters.present(cluster, request.at)
        policy: dict[str, Any] = {
            "spare_gpus": max(1, snapshot.total_gpus),
            "max_tier": "busy",
            "scope": "cluster",
            # All of it moves, by a person's command: the limit is for automatic moves.
            "max_moved_gpus": own.max_moved_gpus + stands,
        }
        if own.max_moved_gpus_day is not None:
            policy["max_moved_gpus_day"] = own.max_moved_gpus_day + stands
        reason = f"{cluster} is retired: {request.reason}"[:500]
        launch = LaunchRequest(
            cluster=cluster, rollout=rollout, owner=request.owner, actor=request.actor, reason=reason, policy=policy
        )
        answer = self.rollouts.launch(launch)
        if answer.plan is None:
            raise Refusal(f"the rollout that sets the quotas of {cluster} to 0 was refused: {answer.reason}")
        if answer.rollout == rollout and answer.stage is Stage.PLANNED:
            word = CommandRequest(
                actor=request.actor, reason=reason, plan_hash=answer.plan.hash, warrant=self._retire_warrant(cluster)
            )
            self.rollouts.command(cluster, Command.APPROVE, word)  # refused where it is approved already

    def _retire_warrant(self, cluster: str) -> str:
        """Return the warrant that retires the cluster; empty without keys."""
        return "" if self.warrants is None else self.warrants.word(f"bringup/{cluster}", "bringup.retire")

    def _assigned_gpus(self, cluster: str) -> int:
        return QuotaTree(quota.as_quota() for quota in self.ports.quotas.read(cluster).quotas).assigned_gpus()

    def _count_running(self, request: WindDownRequest) -> WoundDown:
        """Count jobs by name or, if no source names them, teams whose jobs hold GPUs."""
        cluster, now = request.cluster, request.at
        use = self.ports.usage.latest([cluster], now).get(cluster, {})
        named = [job for job in self.ports.jobs.jobs([cluster], now).get(cluster, ()) if job.ended is None]
        teams = 0 if named else sum(team.scheduled_gpus > 0 for team in use.values())
        if not named and not teams:
            with suppress(BackstopError):  # asked again before anything is removed
                teams = self._count_teams_using(request)
        return WoundDown(quota_gpus=0, jobs=len(named), teams=teams, said="")

    def _count_teams_using(self, request: WindDownRequest) -> int:
        """Count teams whose jobs hold GPUs at this moment, by their Slurm. Errors: Unavailable, BadInput."""
        if request.slurm is None:
            return 0
        there = self.schedulers.describe(request.cluster, request.slurm)
        return sum(bool(quota.scheduled_gpus) for quota in there.quotas)

    def _stage_of(self, opened: OpenRollout) -> str:
        noted = self.ports.registry.newest([opened.cluster]).get(opened.cluster)
        needs = f", and needs a person: {noted.needs}" if noted is not None and noted.needs else ""
        return f"rollout {opened.rollout} of {opened.owner} is {opened.stage}{needs}"

    def _close(self, request: WindDownRequest, opened: OpenRollout) -> NoReturn:
        """Close the rollout. Errors: Refusal; Unavailable until it has ended."""
        reason = f"{request.cluster} is retired: {request.reason}"[:500]
        word = CommandRequest(actor=request.actor, reason=reason, warrant=self._retire_warrant(request.cluster))
        if refused := self.rollouts.command(request.cluster, Command.CLOSE, word):
            raise Refusal(f"rollout {opened.rollout} could not be closed: {refused}")
        raise Unavailable(f"rollout {opened.rollout} is being closed")

    def _key(self, cluster: str, what: str) -> str:
        return f"{bringup_key(cluster, self.ledger.number(cluster))}/{what}"
