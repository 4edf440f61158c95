"""Classes of jobs in a Slurm: written, kept in step with the limits, told of, and taken out again.

A limit is a promise, a class a service inside it: what goes wrong here is told, and keeps no limit from being written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm import sights
from activities.adapters.slurm.class_qos import (
    DEFAULTS,
    QOS_ROWS,
    ClassOf,
    Qos,
    QosCommands,
    Site,
    TeamClasses,
    Wanted,
    bringing,
    config_in,
    defaults_in,
    differing,
    lacking_of,
    named_classes,
    ours,
    qos_there,
    stale,
    taking_out,
    wanted_classes,
)
from activities.adapters.slurm.command_line import Talk
from activities.adapters.slurm.names import plain
from models.cluster.classes import those_of
from models.cluster.sources import OF_CLASS, ClassesInSlurm, SlurmSource
from models.errors import BackstopError, Unavailable

log = logging.getLogger(__name__)

EVERY = timedelta(minutes=1)
"""How often a look compares them with what they should be."""
OFF_EVERY = timedelta(hours=1)
"""How often, where there should be none."""
_LINES = 20
"""Commands of one call, and about what is written at once: each takes about 0.3 s."""
TeamLimits = Mapping[str, int | None]


class _Look(NamedTuple):
    site: Site
    wanted: Wanted
    lacking: Sequence[str]

    @property
    def astray(self) -> bool:
        """Whether there is anything to write."""
        if self.lacking:
            return False
        return bool(differing(self.wanted, self.site) or stale(self.wanted, self.site))


@dataclass(frozen=True)
class SlurmClasses:
    """Those of one cluster. `limits`: what its accounts' limits should be, by team."""

    ledger: Ledger
    talk: Talk
    cluster: str
    source: SlurmSource

    @property
    def _name(self) -> str:
        return plain(self.source.cluster or self.cluster)

    @property
    def named(self) -> dict[str, ClassOf]:
        """Which class of which team a job is of, by its QOS; one that an administrator has made counts too."""
        try:
            return named_classes(self.source.cluster or self.cluster, self._teams())
        except BackstopError:  # a policy that makes no sense is told of elsewhere, and keeps no job from being read
            return {}

    def astray(self, limits: TeamLimits) -> bool:
        """Errors: Unavailable."""
        return self._look(limits).astray

    def keep(self, limits: TeamLimits) -> bool:
        """They are as they should be; False where some were left for another time, so that nobody waits for long.

        Whoever calls writes alone. What goes wrong the log tells, and the doctor.
        """
        try:
            look = self._look(limits)
            if not look.astray:
                return True
            self._take_out(look.site, stale(look.wanted, look.site))
            return self._bring(bringing(look.wanted, look.site))
        except BackstopError as error:
            log.warning("the classes of %s are not as they should be in Slurm: %s", self.cluster, error.message)
            return True

    def _bring(self, by_team: Mapping[str, QosCommands]) -> bool:
        """A team is finished before the next is begun; all are where it answers True."""
        additions: list[str] = []
        settings: list[str] = []
        for commands in by_team.values():
            if additions and len(additions + settings) + sum(map(len, commands)) > _LINES:
                break
            additions += commands.additions
            settings += commands.settings
            by_team = {team: other for team, other in by_team.items() if other is not commands}
        self._write(additions)
        self._write(settings)
        return not by_team

    def fault(self, limits: TeamLimits, *, begun: bool) -> str:
        """What an administrator should know; empty: nothing. `begun`: Backstop writes there. Errors: Unavailable."""
        if self.source.classes is not ClassesInSlurm.WRITE:
            return ""
        site, wanted, lacking = self._look(limits)
        if lacking:
            return f"classes are not written: slurm.conf needs {'; '.join(lacking)}"
        parts = [f"no classes are written for {team}: {wall}" for team, wall in sorted(wanted.walls.items())]
        wrong = differing(wanted, site) if begun or ours(site) else []
        return "; ".join(
            [*parts, *([f"classes that are not what they should be: {', '.join(wrong)}"] if wrong else [])]
        )

    def take_out(self, *, only_look: bool) -> dict[str, tuple[int | None, int | None]]:
        """None of Backstop's is there any more, or has any effect. Answers the limits of those there were, by name."""
        site = self._site()
        mine = ours(site)
        if not only_look:
            self._take_out(site, mine)
        return {OF_CLASS + name: (qos.gpus, None) for name, qos in mine.items()}

    # --- reading and writing --------------------------------------------------------------------

    def _teams(self) -> dict[str, TeamClasses]:
        """Of those that jobs run in. Errors: Refusal for a policy that makes no sense."""
        by_policy = self.ledger.registry.facts(self.cluster).policy.classes
        quotas = self.ledger.schedulers.standing(self.cluster).quotas
        parents = {quota.parent for quota in quotas.values()}
        return {
            team: TeamClasses(those_of(quota.classes, by_policy), quota.block_gpus)
            for team, quota in quotas.items()
            if team not in parents
        }

    def _qos(self) -> dict[str, Qos]:
        return qos_there(self.talk.run("sacctmgr", "-n", "-P", "show", "qos", QOS_ROWS), self.source.tres)

    def _site(self) -> Site:
        of = (f"cluster={self._name}", "user=")
        defaults = defaults_in(self.talk.run("sacctmgr", "-n", "-P", "show", "assoc", *of, DEFAULTS))
        return Site(self._name, self._qos(), defaults, self.source)

    def _look(self, limits: TeamLimits) -> _Look:
        site = self._site()
        if self.source.classes is not ClassesInSlurm.WRITE:
            return _Look(site, Wanted({}, {}, {}), ())
        teams = {team: its for team, its in self._teams().items() if team in site.defaults}
        wanted = wanted_classes(site, teams, limits)
        config = config_in(self.talk.run("scontrol", "show", "config"))
        return _Look(site, wanted, lacking_of(config, self.source) if teams else ())

    def _take_out(self, site: Site, mine: Mapping[str, Qos]) -> None:
        """Errors: Unavailable where some are still there."""
        if not mine:
            return
        used = sights.qos_used(self.talk)
        self._write(taking_out(mine, used, site))
        left = self._qos().keys() & mine.keys() - used
        if left:
            raise Unavailable(f"Slurm did not take back {', '.join(sorted(left))}: try again")

    def _write(self, lines: Sequence[str]) -> None:
        for at in range(0, len(lines), _LINES):
            self.ledger.schedulers.renew(self.cluster)
            self.talk.run("sacctmgr", "-i", "-Q", given="\n".join(lines[at : at + _LINES]) + "\n")
