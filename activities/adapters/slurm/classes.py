"""Classes of jobs in a Slurm: written, kept in step with the limits, reported, and taken out again.

A limit is a promise, a class a service inside it: a fault here is reported, and keeps no limit from being written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm import nodes_and_jobs as sights
from activities.adapters.slurm.class_qos import (
    DEFAULTS,
    QOS_ROWS,
    ClassOf,
    Qos,
    QosCommands,
    Site,
    TeamClasses,
    Wanted,
    absent,
    by_hand,
    commands_to_bring,
    config_in,
    defaults_in,
    differing_qos,
    list_missing_settings,
    named_classes,
    ours,
    qos_there,
    stale_qos,
    too_low,
    wanted_classes,
    write_removals,
)
from activities.adapters.slurm.command_line import Talk
from activities.adapters.slurm.names import plain_name
from models.cluster.classes import those_of
from models.cluster.sources import OF_CLASS, ClassesInSlurm, SlurmSource
from models.errors import BackstopError, Unavailable
from models.texts import count_text, some_of

log = logging.getLogger(__name__)

EVERY = timedelta(minutes=1)
"""How often a look compares the QOS of classes with the wanted ones."""
OFF_EVERY = timedelta(hours=1)
"""How often a look checks that there are no QOS of classes, if none are wanted."""
_LINES = 20
"""Commands in one call, and roughly in one batch of writes: each takes about 0.3 s."""
_ROOMY = 100
"""A priority that leaves room below it for every class and for flex."""
TeamLimits = Mapping[str, int | None]


class ClassesTold(NamedTuple):
    """A report on classes, in a sentence each; empty: nothing to report."""

    wrong: str
    note: str
    """Facts that are no fault but may be news."""


class _Look(NamedTuple):
    site: Site
    wanted: Wanted
    lacking: Sequence[str]

    @property
    def is_astray(self) -> bool:
        """True if there is anything to write."""
        if self.lacking:
            return False
        return bool(differing_qos(self.wanted, self.site) or stale_qos(self.wanted, self.site))


@dataclass(frozen=True)
class SlurmClasses:
    """The classes of one cluster. `limits`: the limits that its accounts should have, by team."""

    ledger: Ledger
    talk: Talk
    cluster: str
    source: SlurmSource

    @property
    def _name(self) -> str:
        return plain_name(self.source.cluster or self.cluster)

    @property
    def class_by_qos(self) -> dict[str, ClassOf]:
        """The team and class of a job, by its QOS; one that an administrator has made counts too."""
        return named_classes(self.source.cluster or self.cluster, self._readable_teams())

    def is_astray(self, limits: TeamLimits) -> bool:
        """Return whether Slurm differs from what should be there. Errors: Unavailable."""
        return self._look(limits).is_astray

    def keep(self, limits: TeamLimits) -> bool:
        """Bring the classes in step; return False if some were left for another time, so that nobody waits for long.

        The caller holds the cluster's lock. Faults go to the log, and to the doctor.
        """
        try:
            look = self._look(limits)
            if not look.is_astray:
                return True
            self._take_out(look.site, stale_qos(look.wanted, look.site))
            return self._bring(commands_to_bring(look.wanted, look.site))
        except BackstopError as error:
            log.warning("could not bring the classes of %s in Slurm up to date: %s", self.cluster, error.message)
            return True

    def _bring(self, by_team: Mapping[str, QosCommands]) -> bool:
        """Finish one team before the next; return True if all are done."""
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

    def advice_for(self, limits: TeamLimits, *, begun: bool) -> ClassesTold:
        """Return what an administrator should know. `begun`: Backstop writes there. Errors: Unavailable."""
        if self.source.classes is not ClassesInSlurm.WRITE:
            return ClassesTold("", self._advice_while_off(limits))
        site, wanted, lacking = self._look(limits)
        if lacking:
            return ClassesTold(f"Backstop cannot write classes: slurm.conf needs {'; '.join(lacking)}", "")
        parts = [f"Backstop cannot write the classes of {team}: {wall}" for team, wall in sorted(wanted.walls.items())]
        if wrong := differing_qos(wanted, site) if begun or ours(site) else []:
            parts.append(f"classes that differ from what Backstop wants: {', '.join(wrong)}")
        parts += [
            f"QOS {qos} has Priority {site.there[qos].priority if qos in site.there else 0}, too low to rank weaker "
            "classes below it: Slurm preempts jobs of weaker classes, but does not make them wait for jobs of "
            f"stronger ones; run `sacctmgr modify qos {qos} set Priority={max(_ROOMY, least)}`"
            for qos, least in sorted(too_low(wanted, site).items())
        ]
        return ClassesTold("; ".join(parts), "")

    def _advice_while_off(self, limits: TeamLimits) -> str:
        """Return advice while classes are off: on QOS left in Slurm, and on those that jobs lack."""
        site = self._site()
        parts = []
        if left := sorted(ours(site)):
            parts.append(
                f"classes are off, and Backstop's QOS {some_of(left)} {'is' if len(left) == 1 else 'are'} still there: "
                "Backstop's next write deletes each of these QOS that has no jobs"
            )
        teams = {team: its for team, its in self._readable_teams().items() if team in site.defaults}
        if lacking := absent(site, teams):
            wanted = wanted_classes(site, teams, limits)
            lines = next((lines for team in lacking if (lines := by_hand(team, wanted, site))), [])
            or_else = f", or let an administrator run: {'; '.join(lines)}" if lines else ""
            more = "; and likewise for the others" if lines and len(lacking) > 1 else ""
            parts.append(
                f"classes of {count_text(len(lacking), 'team')} are not in Slurm ({some_of(lacking)}): "
                f"set slurm: {{classes: write}} in the fleet file{or_else}{more}"
            )
        return "; ".join(parts)

    def take_out(self, *, only_look: bool) -> dict[str, tuple[int | None, int | None]]:
        """Remove Backstop's QOS, or their effect; return the limits they had, by name."""
        site = self._site()
        mine = ours(site)
        if not only_look:
            self._take_out(site, mine)
        return {OF_CLASS + name: (qos.gpus, None) for name, qos in mine.items()}

    # --- reading and writing --------------------------------------------------------------------

    def _teams(self) -> dict[str, TeamClasses]:
        """Return the teams that jobs run in. Errors: Refusal for a policy that makes no sense."""
        by_policy = self.ledger.registry.facts(self.cluster).policy.classes
        quotas = self.ledger.schedulers.mirrored_cluster(self.cluster).quotas
        parents = {quota.parent for quota in quotas.values()}
        return {
            team: TeamClasses(those_of(quota.classes, by_policy), quota.block_gpus)
            for team, quota in quotas.items()
            if team not in parents
        }

    def _readable_teams(self) -> dict[str, TeamClasses]:
        """Return no teams for a senseless policy: that is reported elsewhere, and keeps no job from being read."""
        try:
            return self._teams()
        except BackstopError:
            return {}

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
        return _Look(site, wanted, list_missing_settings(config, self.source) if teams else ())

    def _take_out(self, site: Site, mine: Mapping[str, Qos]) -> None:
        """Remove these QOS. Errors: Unavailable if some are still there."""
        if not mine:
            return
        used = sights.qos_used(self.talk)
        self._write(write_removals(mine, used, site))
        left = self._qos().keys() & mine.keys() - used
        if left:
            raise Unavailable(
                f"Slurm still has these QOS, which Backstop made: {', '.join(sorted(left))}; give the command again"
            )

    def _write(self, lines: Sequence[str]) -> None:
        for at in range(0, len(lines), _LINES):
            self.ledger.schedulers.renew(self.cluster)
            self.talk.run("sacctmgr", "-i", "-Q", stdin="\n".join(lines[at : at + _LINES]) + "\n")
