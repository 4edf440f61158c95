"""Parses the output of Slurm's tools into models, and derives a cluster's quotas from it. Pure.

Texts that people write (reasons, comments, names of jobs and accounts) stand in it beside Slurm's own. So nodes and
jobs are read as JSON, each field in the forms of the known releases; `sacctmgr -n -P`, which has no JSON before 23.02,
is asked for such texts where they can be told from the rest. Tested with 22.05.8.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from models.base import MOST_GPUS, GpuCount, Model, Name
from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn
from models.cluster.readings import Present, TeamUsage
from models.cluster.sources import WHOLE, SlurmSource
from models.errors import Unavailable

# --- accounts ----------------------------------------------------------------------------------


_BROKEN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RecursionError)
"""Errors that a document of an unexpected form can cause."""
_LONGEST_NAME = 150


def document_in(printed: str) -> Any:
    """Parse the output as JSON. Errors: Unavailable."""
    try:
        return json.loads(printed)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"Slurm did not print JSON: {type(error).__name__} {error}"[:300]) from None


def storable_text(text: str) -> str:
    """Return a person's text in a form that every database and every line can hold."""
    one_line = "".join(char if char.isprintable() else " " for char in text[:_LONGEST_NAME])
    return " ".join(one_line.split())


class Account(Model):
    """An account's own association. Units: whole GPUs; None: no limit."""

    number: str
    name: str
    parent: str
    gpus: int | None = None
    others: dict[str, int] = Field(default_factory=dict)
    """The account's limits of other TRES, by name."""


_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
"""A number with more digits is no limit."""


def tres_of(text: str) -> dict[str, int]:
    """Parse `cpu=4,gres/gpu=8` by name, without values that are not whole numbers."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: int(value) for name, _, value in pairs if _WHOLE.fullmatch(value)}


ASSOC_FORMAT = "format=ID,ParentID,GrpTRES,Account"
NUMBERS_FORMAT = "format=ID"
_ASSOCIATION = re.compile(r"(\d+)\|(\d*)\|([^|]*)\|(.*)", re.ASCII)


def accounts_in(printed: str, tres: str, numbers: str) -> dict[str, Account]:
    """Parse `sacctmgr -n -P show assoc ... user=` in the first format, and in the second, into accounts by name.

    An account's name may contain anything, even lines that look like associations: only numbers tell them apart. A name
    that no team can have is shown with its number. Errors: Unavailable for another output.
    """
    rows: dict[str, list[str]] = {}
    number = ""
    for line in printed.strip("\n").split("\n") if printed.strip() else []:
        if match := _ASSOCIATION.fullmatch(line):
            number, *fields = match.groups()
            if number in rows:
                raise Unavailable(f"sacctmgr printed association {number} twice: {line[:80]!r}")
            rows[number] = fields
        elif not number:
            raise Unavailable(f"sacctmgr printed a line that is not an association: {line[:80]!r}")
        else:
            rows[number][-1] += f"\n{line}"
    if rows.keys() != set(numbers.split()):
        raise Unavailable(
            "sacctmgr printed inconsistent associations, or somebody changed them while it ran: try again"
        )
    names = {number: _team_name(name, number) for number, (_, _, name) in rows.items()}
    accounts: dict[str, Account] = {}
    for number, (parent, limits, _) in rows.items():
        others = tres_of(limits)
        limit = others.pop(tres, MOST_GPUS + 1)
        account = Account(
            number=number,
            name=names[number],
            parent=names.get(parent, ""),
            gpus=limit if limit <= MOST_GPUS else None,
            others=others,
        )
        if accounts.setdefault(account.name, account) is not account:
            raise Unavailable(f"sacctmgr printed the account {account.name!r} twice")
    return accounts


def _team_name(name: str, number: str) -> str:
    """Return the name if a team can have it; a colon marks limits in the ledger that are not accounts."""
    plain = storable_text(name).replace(":", " ")
    return name if name == plain else f"{plain} ({number})"


QOS_FORMAT = "format=GrpTRES,Name"


def qos_in(printed: str, tres: str) -> dict[str, int | None]:
    """Parse `sacctmgr -n -P show qos` in this format: the limit of each QOS by its name; None: no limit."""
    lines = (line.partition("|") for line in printed.split("\n") if line)
    return {name: tres_of(limits).get(tres) for limits, _, name in lines}


def ancestors_of(accounts: Mapping[str, Account], name: str) -> Iterator[str]:
    """Yield the accounts over this one, the nearest first."""
    seen: set[str] = set()
    while (name := accounts[name].parent) and name in accounts and name not in seen:
        seen.add(name)
        yield name


def quotas_of(accounts: Mapping[str, Account], source: SlurmSource) -> dict[str, Present]:
    """Return accounts under the root that have a limit, by name; those for flex have none of their own.

    An account without a limit promises nothing; the next one above that has one is its children's parent.
    """
    quotas: dict[str, Present] = {}
    for name, account in accounts.items():
        chain = list(ancestors_of(accounts, name))
        if account.gpus is None or source.root not in chain or source.flex_root in (name, *chain):
            continue
        inside = chain[: chain.index(source.root)]
        parent = next((one for one in inside if accounts[one].gpus is not None), None)
        quotas[name] = Present(team=name, gpus=account.gpus, parent=parent)
    return quotas


# --- transactions ------------------------------------------------------------------------------

TRANSACTIONS_FORMAT = "format=TimeStamp,Action,Actor,Where"
_OF_ASSOCIATIONS = re.compile(
    r"[-0-9T:]{19}\|(?:Modify|Add|Remove) Associations\|([^|]{1,100})\|"
    r"\(?(id_assoc=\d+(?: (?:or|\|\|) id_assoc=\d+)*)\)?",
    re.ASCII,
)


def actors_in(printed: str) -> dict[str, str]:
    """Parse `sacctmgr -n -P list transactions` in this format: who changed each association last, by its number."""
    matches = (_OF_ASSOCIATIONS.fullmatch(line) for line in printed.split("\n"))
    return {number: match[1] for match in matches if match is not None for number in re.findall(r"\d+", match[2])}


# --- nodes -------------------------------------------------------------------------------------

_TAKES_JOBS = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_TAKES_NONE = frozenset({"DOWN", "ERROR", "FUTURE", "INVALID", "UNKNOWN"})
"""With `_TAKES_JOBS`: the base states in slurm.h (22.05 to 25.11); a node has one of them."""
_FAULTS = frozenset(
    (
        *("DRAIN", "FAIL", "INVALID_REG", "MAINTENANCE", "NOT_RESPONDING", "PERFCTRS", "POWER_DRAIN"),
        *("REBOOT_ISSUED", "REBOOT_REQUESTED"),
        *("DRAINED", "DRAINING", "FAILING", "INVAL", "MAINT", "NO_RESPOND"),  # as sinfo's columns have them
    )
)
"""Flags of slurm.h with which Slurm places no job on a node."""
_HARMLESS = frozenset(
    (
        *("CLOUD", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "EXTERNAL"),  # how the node came to be
        *("BLOCKED", "COMPLETING", "PLANNED", "RESERVED"),  # what Slurm does or plans with it
        *("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"),  # it is booted for a job
        *("CANCEL_REBOOT", "REBOOT_CANCEL", "REBOOT_CANCELED", "RESUME", "UNDRAIN"),  # back in service
    )
)
"""The other flags of slurm.h."""
_NODE_WORDS = _TAKES_JOBS | _TAKES_NONE | _FAULTS | _HARMLESS
"""Any other word in a node's state is reported, but is no fault."""


class Node(Model):
    name: Name
    gpus: GpuCount
    healthy: bool
    state: str
    unknown: tuple[str, ...] = ()
    """Words of the node's state that are in none of our lists."""

    @property
    def has_base(self) -> bool:
        """True if Slurm reported one of the known base states."""
        return not (_TAKES_JOBS | _TAKES_NONE).isdisjoint(self.state.split("+"))


def nodes_in(document: Any, gres: str) -> tuple[Node, ...]:
    """Parse the JSON of `sinfo` or `scontrol show nodes` into the nodes that have such GPUs. Errors: Unavailable.

    A node that is listed twice counts once, and as healthy only if it is so both times.
    """
    by_name: dict[str, Node] = {}
    try:
        for row in document["nodes"]:
            node = _node(row, gres)
            if node is not None and (node.name not in by_name or by_name[node.name].healthy):
                by_name[node.name] = node
        return tuple(by_name.values())
    except _BROKEN as error:
        raise Unavailable(
            f"Slurm described its nodes in a way that Backstop cannot read: {type(error).__name__} {error}"[:300]
        ) from None


def _node(row: Mapping[str, Any], gres: str) -> Node | None:
    gpus = tres_of(str(row.get("tres") or "")).get(f"gres/{gres}") or _gres(str(row.get("gres") or ""), gres)
    words = [row["state"], row.get("state_flags") or []]  # a word and its flags, and in later releases a list of both
    state = [str(word).upper() for one in words for word in ([one] if isinstance(one, str) else one)]
    if not gpus:
        return None
    unknown = tuple(storable_text(word) for word in state if word not in _NODE_WORDS)
    return Node(name=row["name"], gpus=gpus, healthy=_is_healthy(state), state="+".join(state), unknown=unknown)


def _is_healthy(state: Collection[str]) -> bool:
    """Return whether a job can be placed on it: Slurm powers a node up for a job.

    Slurm flags a node as not responding while it boots; if it does not come up in ResumeTimeout, it is DOWN.
    """
    faults = _FAULTS - {"NOT_RESPONDING"} if "POWERING_UP" in state else _FAULTS
    return len(_TAKES_JOBS.intersection(state)) == 1 and (_TAKES_NONE | faults).isdisjoint(state)


def _gres(text: str, gres: str) -> int:
    """Count the GPUs in `gpu:h100:8(S:0-1),gpu:a100:2`; a kind after a colon is one of them."""
    counts = (re.fullmatch(r"([^()]*?)(?::(\d+))?(?:\(.*\))?", part) for part in re.split(r",(?![^()]*\))", text))
    wanted = gres.split(":")
    total = 0
    for match in counts:
        if match is not None and match[1] and match[1].split(":")[: len(wanted)] == wanted:
            total += int(match[2] or 1)
    return total


def islands_in(printed: str) -> dict[str, frozenset[str]]:
    """Parse `scontrol -o show topology` into nodes by leaf switch."""
    islands = {}
    for line in printed.splitlines():
        # The first of a key is Slurm's own: a later one may be in a field that somebody wrote.
        fields = dict(reversed(re.findall(r"(\w+)=(\S*)", line)))
        if fields.get("Level") == "0" and "SwitchName" in fields:
            islands[fields["SwitchName"]] = frozenset(hosts(fields.get("Nodes", "")))
    return islands


_MOST_HOSTS = 100_000


def hosts(text: str) -> Iterator[str]:
    """Yield the names that `gpu[001-003,7],login1` stands for. Errors: ValueError."""
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        yield from _expand(part)


def _expand(part: str) -> Iterator[str]:
    match = re.search(r"\[([^\]]*)\]", part)
    if match is None:
        yield part
        return
    before, after = part[: match.start()], part[match.end() :]
    for piece in match[1].split(","):
        first, _, last = piece.partition("-")
        if int(last or first) - int(first) > _MOST_HOSTS:
            raise ValueError(f"{part[:80]!r} names more than {_MOST_HOSTS:,} hosts")
        for number in range(int(first), int(last or first) + 1):
            yield from _expand(f"{before}{number:0{len(first)}d}{after}")


def capacity(nodes: Sequence[Node], islands: Mapping[str, Iterable[str]]) -> tuple[Island, ...]:
    """Return the islands, by name. Nodes of no island form one of their own: `main`."""
    of = {node: island for island, names in sorted(islands.items()) for node in names}
    total: dict[str, int] = {}
    healthy: dict[str, int] = {}
    for node in nodes:
        island = of.get(node.name, WHOLE)
        total[island] = total.get(island, 0) + node.gpus
        healthy[island] = healthy.get(island, 0) + node.gpus * node.healthy
    # A node is healthy as a whole or not at all: its GPUs are contiguous with those of other such nodes.
    return tuple(Island(name=name, total_gpus=total[name], healthy_gpus=healthy[name]) for name in sorted(total))


# --- jobs --------------------------------------------------------------------------------------


class SlurmJob(Model):
    """A job that holds GPUs, or one or several that wait for them. `gpus`: of all of them together."""

    number: int
    name: str
    account: str
    qos: str
    gpus: int
    runs: bool
    started: datetime | None = None
    nodes: tuple[str, ...] = Field(default=())
    requeued: datetime | None = None
    """The last time Slurm took the job's nodes away and requeued it; None: never."""
    unknown: tuple[str, ...] = ()
    """Words of the job's state that are in none of our lists."""

    @property
    def label(self) -> str:
        """The job's name and number, because many jobs may have the same name."""
        return f"{self.name} ({self.number})"


_HOLDS = frozenset(
    ("RUNNING", "SUSPENDED", "CONFIGURING", "POWER_UP_NODE", "RESIZING", "SIGNALING", "STOPPED", "COMPLETING")
)
"""States with an allocation. Slurm 22.05 prints one word, and a flag instead of RUNNING; later releases list both."""
_WAITS = frozenset(
    (
        *("PENDING", "EXPEDITING", "GETENV_FAILED", "LAUNCH_FAILED", "RECONFIG_FAIL", "REQUEUED", "REQUEUE_FED"),
        *("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
    )
)
_STAGE_OUT = "STAGE_OUT"
"""The job's nodes are free again; a burst buffer still has its files."""
_OVER = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    )
)
"""Final states of a job. A job in any other state, even an unknown one, may still need its QOS."""
_JOB_WORDS = _HOLDS | _WAITS | _OVER | {_STAGE_OUT}


def jobs_in(document: Any, tres: str) -> tuple[SlurmJob, ...]:
    """Parse the JSON of `squeue` into the jobs with such GPUs, each once. Errors: Unavailable for another document."""
    try:
        rows = document["jobs"]
        running = Counter(_number(row.get("array_job_id")) for row in rows if _holds(_states(row)))
        jobs = (_slurm_job(row, tres, running) for row in rows)
        return tuple({job.number: job for job in jobs if job is not None}.values())
    except _BROKEN as error:
        raise _unread_jobs(error) from None


def _holds(states: Collection[str]) -> bool:
    """Return whether the job holds GPUs: one that is over holds them until its epilog has ended."""
    return "COMPLETING" in states or (_OVER.isdisjoint(states) and not _HOLDS.isdisjoint(states))


def _slurm_job(row: Mapping[str, Any], tres: str, running: Mapping[int, int]) -> SlurmJob | None:
    """Parse a job. `running`: how many tasks of each array hold GPUs."""
    states = _states(row)
    held = tres_of(str(row.get("tres_alloc_str") or "")).get(tres, 0)
    unknown = tuple(storable_text(word) for word in states if word not in _JOB_WORDS)
    runs = _holds(states) or bool(unknown and held and _OVER.isdisjoint(states))
    if not runs and not {*_OVER, _STAGE_OUT}.isdisjoint(states):
        return None
    tasks = 1 if runs else _waiting_tasks(row, running)
    gpus = held if runs else tasks * tres_of(str(row.get("tres_req_str") or "")).get(tres, 0)
    if not gpus:
        return None
    started = _number(row.get("start_time"))
    requeued = _number(row.get("submit_time")) if _number(row.get("restart_cnt")) else 0  # Slurm submits it again then
    return SlurmJob(
        number=int(row["job_id"]),
        name=storable_text(str(row.get("name") or "")) or str(row["job_id"]),
        account=str(row["account"]),
        qos=str(row.get("qos") or ""),
        gpus=gpus,
        runs=runs,
        started=datetime.fromtimestamp(started, UTC) if runs and started else None,
        nodes=tuple(hosts(str(row.get("nodes") or ""))) if runs else (),
        requeued=datetime.fromtimestamp(requeued, UTC) if requeued else None,
        unknown=unknown,
    )


_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


def _waiting_tasks(row: Mapping[str, Any], running: Mapping[int, int]) -> int:
    """Count the jobs that a waiting row stands for: 4 for the tasks `3-6`, and 2 of them for `3-6%2`."""
    listed, _, at_once = str(row.get("array_task_string") or "").partition("%")
    tasks = 0
    for first, last, step in (match.groups() for match in map(_TASKS.fullmatch, listed.split(",")) if match):
        tasks += max(0, int(last or first) - int(first)) // max(1, int(step or 1)) + 1
    tasks = max(1, tasks)  # no array, or one whose list is not whole
    if not at_once.isdecimal():
        return tasks
    return max(0, min(tasks, int(at_once) - running.get(_number(row.get("array_job_id")), 0)))


def qos_in_use(document: Any) -> frozenset[str]:
    """Return the QOS of all jobs that are not over, of the JSON of `squeue`. Errors: Unavailable."""
    try:
        return frozenset(str(row.get("qos") or "") for row in document["jobs"] if not _OVER.issuperset(_states(row)))
    except _BROKEN as error:
        raise _unread_jobs(error) from None


def _states(row: Mapping[str, Any]) -> list[str]:
    """Return a word, and in later releases a list of words, as a list. Errors: LookupError for none."""
    states = row["job_state"]
    words = [states] if isinstance(states, str) else [str(word) for word in states]
    if not words:
        raise LookupError("a job without a state")
    return [word.upper() for word in words]


def _unread_jobs(error: BaseException) -> Unavailable:
    return Unavailable(
        f"Slurm described its jobs in a way that Backstop cannot read: {type(error).__name__} {error}"[:300]
    )


def _number(value: Any) -> int:
    """Return a number, which is {"set": true, "number": 3} in later releases."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value.get("set") else 0
    return int(value or 0)


def team_of(
    job: SlurmJob, teams: Collection[str], source: SlurmSource, accounts: Mapping[str, Account]
) -> tuple[str, RunsOn] | None:
    """Return the job's team, and whether it runs on quota or flex; None if it is no team's.

    Slurm counts a job in the limits of all accounts above its own: an account without a limit is a part of its team.
    """
    above = ancestors_of(accounts, job.account) if job.account in accounts else ()
    for account in (job.account, *above):
        if account in teams:
            return account, RunsOn.FLEX if job.qos == source.flex_qos else RunsOn.QUOTA
        team = account.removesuffix(source.flex_suffix)
        if team in teams:
            return team, RunsOn.FLEX
    return None


def use_of(
    jobs: Sequence[SlurmJob],
    teams: Collection[str],
    source: SlurmSource,
    accounts: Mapping[str, Account],
    now: datetime,
) -> list[TeamUsage]:
    """Sum up the GPUs that teams' jobs hold and wait for on quota; none count as idle, as Slurm does not say."""
    names = sorted(teams)
    held, waits = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for job in jobs:
        whose = team_of(job, held, source, accounts)
        if whose is not None and whose[1] is RunsOn.QUOTA:
            (held if job.runs else waits)[whose[0]] += job.gpus
    return [TeamUsage(team=t, scheduled_gpus=held[t], pending_gpus=min(waits[t], MOST_GPUS), at=now) for t in names]


NO_ACCOUNT = "no account"


def named_jobs(
    jobs: Sequence[SlurmJob],
    teams: Collection[str],
    source: SlurmSource,
    accounts: Mapping[str, Account],
    islands: Mapping[str, Iterable[str]],
    classes: Mapping[str, tuple[str, str]],
) -> list[Job]:
    """List the running jobs; one of no team has its account instead. `classes`: the team and class of jobs in a QOS."""
    of = {node: island for island, names in islands.items() for node in names}
    named = []
    for job in jobs:
        if not job.runs or job.started is None:
            continue
        strangers = (
            storable_text(job.account) or NO_ACCOUNT,
            RunsOn.FLEX if job.qos == source.flex_qos else RunsOn.QUOTA,
        )
        whose = team_of(job, teams, source, accounts) or strangers
        team, job_class = classes.get(job.qos, ("", None))
        places = {of.get(node, WHOLE) for node in job.nodes}
        named.append(
            Job(
                job=job.label,
                team=whose[0],
                gpus=job.gpus,
                on=whose[1],
                island=places.pop() if len(places) == 1 else None,
                started=job.started,
                job_class=job_class if team == whose[0] and whose[1] is RunsOn.QUOTA else None,
            )
        )
    return named
