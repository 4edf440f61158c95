"""Classes of a team as QOS of Slurm: which there should be, which are Backstop's, the commands between. Pure.

Each class of each team has a QOS of its own: with one for all teams, a team's training could end its neighbours'
engines. The stronger may preempt the weaker; the weaker are limited to the GPUs that the team's protected blocks
leave, because Slurm applies limits before it considers preemption. The limit is MaxTRESPerAccount: a GrpTRES of a QOS
would replace the account's own, and engines would run beyond the quota (docs/adr/0051-classes-on-slurm.md).

Only its description makes a QOS Backstop's, so that every reader can see it, also one with another ledger.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from activities.adapters.slurm.names import is_quotable
from activities.adapters.slurm.parsing import tres_of
from models.cluster.sources import SlurmSource, Yield

_STANDARD = "normal"
"""The QOS of a job whose account has no default."""
OURS = "backstop: "
"""The prefix of the descriptions of QOS that Backstop made for classes."""
_NAMES = 100
"""The most QOS in one command."""


@dataclass(frozen=True)
class Qos:
    """The settings that Backstop writes of a QOS. Units: seconds; whole GPUs of one account, None: no limit."""

    description: str
    priority: int = 0
    preempts: frozenset[str] = frozenset()
    mode: str = "cluster"
    grace: int = 0
    gpus: int | None = None

    @property
    def without_limits(self) -> Qos:
        """The same QOS without effect, for one that jobs are still in."""
        return Qos(self.description, self.priority, self.preempts)


class TeamClasses(NamedTuple):
    """A team's classes, the strongest first, and the size of its protected blocks. Units: whole GPUs."""

    classes: tuple[str, ...]
    block_gpus: int


class ClassOf(NamedTuple):
    team: str
    job_class: str


class Wanted(NamedTuple):
    qos: dict[str, Qos]
    """The QOS by name; of a team's, the weaker ones first."""
    of: dict[str, ClassOf]
    walls: dict[str, str]
    """By team whose QOS are not written, the reason."""


class Defaults(NamedTuple):
    """An account's default QOS, and all that its jobs may name."""

    qos: str
    may: frozenset[str]


def qos_name(cluster: str, team: str, job_class: str) -> str:
    """Return the name in Slurm, which has no capitals. `cluster`: its name in Slurm, unique on its slurmdbd."""
    return f"{cluster}-{team}-{job_class}".lower()


def named_classes(cluster: str, teams: Mapping[str, TeamClasses]) -> dict[str, ClassOf]:
    """Return each class by the name of its QOS, whoever made that. A name that two classes share is left out."""
    classes: dict[str, ClassOf] = {}
    twice: set[str] = set()
    for team, its in sorted(teams.items()):
        for job_class in its.classes:
            name = qos_name(cluster, team, job_class)
            twice |= {name} & classes.keys()
            classes[name] = ClassOf(team, job_class)
    return {name: of for name, of in classes.items() if name not in twice}


# --- what is there -----------------------------------------------------------------------------

QOS_ROWS = "format=Priority,GraceTime,PreemptMode,MaxTRESPA,Preempt,Name,Description"
_ROW = re.compile(r"(\d+)\|(?:(\d+)-)?(\d+):(\d+):(\d+)\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]+)\|(.*)", re.ASCII)
DEFAULTS = "format=DefaultQOS,QOS,Account"
_DEFAULT = re.compile(r"([^|]*)\|([^|]*)\|([^|]+)")


def qos_there(printed: str, tres: str) -> dict[str, Qos]:
    """Parse `sacctmgr -n -P show qos` in this format, by name. Any other row is no QOS of ours."""
    qos = {}
    for match in filter(None, map(_ROW.fullmatch, printed.split("\n"))):
        priority, days, *clock, mode, limits, preempts, name, description = match.groups()
        hours, minutes, seconds = map(int, clock)
        qos[name] = Qos(
            description=description,
            priority=int(priority),
            preempts=frozenset(filter(None, preempts.split(","))),
            mode=mode.lower(),
            grace=((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds,
            gpus=tres_of(limits).get(tres),
        )
    return qos


def defaults_in(printed: str) -> dict[str, Defaults]:
    """Parse `sacctmgr -n -P show assoc ... user=` in this format, by account, without accounts that appear twice.

    An account's name may contain anything, even lines of other accounts.
    """
    rows = [match.groups() for match in map(_DEFAULT.fullmatch, printed.split("\n")) if match is not None]
    times = Counter(account for _, _, account in rows)
    return {
        account: Defaults(default or _STANDARD, frozenset(filter(None, may.split(","))))
        for default, may, account in rows
        if times[account] == 1
    }


@dataclass(frozen=True)
class Site:
    """A cluster whose classes are written: its name in Slurm, its QOS and defaults, and the fleet file's settings."""

    cluster: str
    there: Mapping[str, Qos]
    defaults: Mapping[str, Defaults]
    source: SlurmSource


def ours(site: Site) -> dict[str, Qos]:
    """Return Backstop's QOS for teams under the source's root, without those of its ledger's other clusters."""
    end = _place(site)
    return {
        name: qos
        for name, qos in site.there.items()
        if qos.description.startswith(OURS) and qos.description.endswith(end)
    }


def stale_qos(wanted: Wanted, site: Site) -> dict[str, Qos]:
    """Return our QOS that are not wanted any more, without those of a team behind a wall."""
    walled = tuple(f" of {team}{_place(site)}".lower() for team in wanted.walls)
    return {
        name: qos for name, qos in ours(site).items() if name not in wanted.qos and not qos.description.endswith(walled)
    }


# --- what should be ----------------------------------------------------------------------------


def wanted_classes(site: Site, teams: Mapping[str, TeamClasses], limits: Mapping[str, int | None]) -> Wanted:
    """Return the QOS of each team that has classes. `limits`: the limit that its account should have."""
    wanted = Wanted({}, {}, {})
    class_of = named_classes(site.cluster, teams)
    for team, its in sorted(teams.items()):
        limit = limits.get(team)
        if len(its.classes) < 2 or limit is None:
            continue
        wall = _wall(site, team, its.classes, class_of)
        if wall:
            wanted.walls[team] = wall
            continue
        for name, qos in _team_qos(site, team, its.classes, max(0, limit - its.block_gpus)):
            wanted.qos[name] = qos
            wanted.of[name] = class_of[name]
    return wanted


_ALLOWED = "only letters, digits and . _ @ + - are allowed"


def _wall(site: Site, team: str, classes: Sequence[str], class_of: Mapping[str, ClassOf]) -> str:
    """Return why none of this team's QOS is written; empty if they may be."""
    if not is_quotable(site.source.root):
        return f"the account {site.source.root!r} cannot be part of a QOS name: {_ALLOWED}"
    for job_class in classes:
        name, mark = qos_name(site.cluster, team, job_class), _description(site, team, job_class)
        if not is_quotable(name) or name[0] in "+-":
            return f"class {job_class!r} cannot be the QOS {name!r} in Slurm: {_ALLOWED}"
        if name not in class_of:
            return f"class {job_class!r} and another class would both be the QOS {name}: rename one of them"
        other = site.there[name].description if name in site.there else mark
        if other.startswith(OURS) and other != mark:
            return f"Backstop already uses the QOS {name} for {other.removeprefix(OURS)}: rename class {job_class!r}"
        if other != mark:
            return (
                f"somebody else made the QOS {name}: rename class {job_class!r}, or hand the QOS over to Backstop with "
                f"sacctmgr modify qos {name} set description='{mark}'"
            )
    return ""


def _team_qos(site: Site, team: str, classes: Sequence[str], weaker_gpus: int) -> Iterator[tuple[str, Qos]]:
    """Yield the team's QOS, the weakest first. The strongest may do what a job without a class may do, and no more."""
    own = {qos_name(site.cluster, team, c) for c in classes}
    base = site.there.get(_base(site, team, own), Qos(""))
    preempts = base.preempts - own
    for rank, job_class in reversed(list(enumerate(classes))):
        name = qos_name(site.cluster, team, job_class)
        strongest = Qos(_description(site, team, job_class), base.priority, preempts)
        its = site.source.yields.get(job_class, Yield())
        weaker = replace(
            strongest,
            priority=max(0, base.priority - rank),
            mode=its.how.value,
            grace=int(its.grace.total_seconds()),
            gpus=weaker_gpus,
        )
        yield name, weaker if rank else strongest
        preempts |= {name}


def _base(site: Site, team: str, own: Collection[str]) -> str:
    """Return the QOS whose rights the strongest class has."""
    default = site.defaults[team].qos
    return _STANDARD if default in own else default


def too_low(wanted: Wanted, site: Site) -> dict[str, int]:
    """Return QOS without room for a step down to each weaker class, and the lowest priority that would do."""
    priorities: dict[str, int] = {}
    for team in {of.team for of in wanted.of.values()}:
        own = [name for name, of in wanted.of.items() if of.team == team]
        base = _base(site, team, own)
        if site.there.get(base, Qos("")).priority < len(own) - 1:
            priorities[base] = max(len(own) - 1, priorities.get(base, 0))
    return priorities


def _description(site: Site, team: str, job_class: str) -> str:
    return f"{OURS}{job_class} of {team}{_place(site)}".lower()


def _place(site: Site) -> str:
    return f" under {site.source.root} in {site.cluster}".lower()


def differing_qos(wanted: Wanted, site: Site) -> list[str]:
    """Return names of QOS that are not as they should be, or that their team's account may not use."""
    return sorted(
        name
        for name, qos in wanted.qos.items()
        if not _is_same(site.there.get(name), qos) or name not in site.defaults[wanted.of[name].team].may
    )


def _is_same(there: Qos | None, wanted: Qos) -> bool:
    if there is None:
        return False
    # Never emptied: slurmdbd takes a QOS whose list was emptied for a loop wherever it is named (22.05.8).
    return there == (wanted if wanted.preempts else replace(wanted, preempts=there.preempts))


# --- commands ----------------------------------------------------------------------------------


class QosCommands(NamedTuple):
    """Commands of sacctmgr, each part for a run of its own: a run does not see QOS that were made after its start."""

    additions: list[str]
    settings: list[str]


def commands_to_bring(wanted: Wanted, site: Site) -> dict[str, QosCommands]:
    """Return the commands that make each lacking team's QOS, and let its account use them."""
    commands_of: dict[str, QosCommands] = {}
    for team in sorted({of.team for of in wanted.of.values()}):
        news = {name: qos for name, qos in wanted.qos.items() if wanted.of[name].team == team}
        commands = _account_commands(team, news, site)
        if commands.settings:
            commands_of[team] = commands
    return commands_of


def _account_commands(team: str, news: Mapping[str, Qos], site: Site) -> QosCommands:
    there = site.there
    additions = [f"add qos {name} description='{qos.description}'" for name, qos in news.items() if name not in there]
    settings = []
    # First remove what changes its direction: a reversed order is a loop until then.
    for name, qos in news.items():
        fewer = qos.preempts & there[name].preempts if name in there else frozenset()
        if fewer and fewer != there[name].preempts:
            settings.append(f"modify qos {name} set Preempt={_list(fewer)}")
    settings += [_setting(name, qos, site.source) for name, qos in news.items() if not _is_same(there.get(name), qos)]
    if lacking := news.keys() - site.defaults[team].may:
        settings.append(f"modify account {team} cluster={site.cluster} set qos+={_list(lacking)}")
    return QosCommands(additions, settings)


def write_removals(mine: Mapping[str, Qos], used: Collection[str], site: Site) -> list[str]:
    """Return the commands of sacctmgr that remove these QOS, and take them out of every account's list.

    One that jobs are in stays, without effect: the jobs run on, yield to none of the others, and have no limit but
    their account's; a job whose QOS was removed would wait for ever.
    """
    gone = sorted(mine.keys() - used)
    lines = []
    for name in sorted(mine.keys() & used):
        idle = replace(mine[name].without_limits, preempts=mine[name].preempts - mine.keys())
        if idle != mine[name]:
            lines.append(_setting(name, idle, site.source, emptied=True))
    some = (gone[at : at + _NAMES] for at in range(0, len(gone), _NAMES))
    return [*lines, *(f"remove qos {','.join(names)}" for names in some)]


def _setting(name: str, qos: Qos, source: SlurmSource, *, emptied: bool = False) -> str:
    gpus = -1 if qos.gpus is None else qos.gpus
    preempts = f"Preempt={_list(qos.preempts)} " if qos.preempts or emptied else ""
    return (
        f"modify qos {name} set {preempts}Priority={qos.priority} PreemptMode={qos.mode} GraceTime={qos.grace} "
        f"MaxTRESPerAccount={source.tres}={gpus}"
    )


def _list(names: Collection[str]) -> str:
    return ",".join(sorted(names))


def absent(site: Site, teams: Mapping[str, TeamClasses]) -> list[str]:
    """Return teams with classes that lack QOS of these names which their account may use, by any maker."""
    return sorted(
        team
        for team, its in teams.items()
        if len(its.classes) > 1
        and not {qos_name(site.cluster, team, c) for c in its.classes} <= site.there.keys() & site.defaults[team].may
    )


def by_hand(team: str, wanted: Wanted, site: Site) -> list[str]:
    """Return the commands an administrator would type for this team, whose QOS are the site's own then."""
    new = [name for name, of in wanted.of.items() if of.team == team and name not in site.there]
    settings = commands_to_bring(wanted, site).get(team, QosCommands([], [])).settings
    return [f"sacctmgr -i {line}" for line in [*([f"add qos {_list(new)}"] if new else []), *settings]]


# --- what Slurm must be set to -----------------------------------------------------------------


def config_in(printed: str) -> dict[str, str]:
    """Parse `scontrol show config`; the first of a key is Slurm's own."""
    pairs = (line.partition("=") for line in reversed(printed.split("\n")) if re.match(r"\w+ *=", line))
    return {key.strip(): value.strip() for key, _, value in pairs}


def list_missing_settings(config: Mapping[str, str], source: SlurmSource) -> list[str]:
    """Return what slurm.conf must say for classes, beside what it does say; none: they can be written."""
    enforced = set(re.split(r"[,+]", config.get("AccountingStorageEnforce", "").lower()))
    counted = config.get("AccountingStorageTRES", "").lower().split(",")
    weight = config.get("PriorityWeightQOS", "")
    needs = (
        (config.get("PreemptType") == "preempt/qos", "PreemptType", "PreemptType=preempt/qos"),
        (
            config.get("PreemptMode", "OFF").upper() not in ("OFF", "GANG", "WITHIN"),
            "PreemptMode",
            "PreemptMode=REQUEUE (or CANCEL)",
        ),
        (config.get("PriorityType") == "priority/multifactor", "PriorityType", "PriorityType=priority/multifactor"),
        (weight.isascii() and weight.isdigit() and int(weight) > 0, "PriorityWeightQOS", "PriorityWeightQOS above 0"),
        (
            "all" in enforced or {"limits", "qos"} <= enforced or {"safe", "qos"} <= enforced,
            "AccountingStorageEnforce",
            "AccountingStorageEnforce=associations,limits,qos",
        ),
        (source.tres in counted, "AccountingStorageTRES", f"{source.tres} in AccountingStorageTRES"),
    )
    return [f"{asked} (it has {config.get(key) or 'none'})" for well, key, asked in needs if not well]
