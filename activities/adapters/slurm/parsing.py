"""What Slurm's own tools print, as models; and what Slurm's limits should be for a cluster's quotas. Pure.

Read of `sacctmgr -n -P`, `scontrol -o` and `squeue --json`, whose forms have stayed the same over many releases; of the
JSON, whose fields have not, each field is read in the forms that are known. Tried with 22.05.8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from models.base import GpuCount, Model, Name
from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn
from models.cluster.readings import LimitMode, TeamUsage
from models.cluster.sources import WHOLE, SlurmSource
from models.errors import Unavailable

# --- accounts ----------------------------------------------------------------------------------


class Account(Model):
    """An account's own association. Units: whole GPUs; None: no limit."""

    number: str
    name: Name
    parent: str
    gpus: int | None = None


def tres_of(text: str) -> dict[str, int]:
    """`cpu=4,gres/gpu=8` by name; what is no whole number is left out."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: int(value) for name, _, value in pairs if value.isdigit()}


ASSOC_FORMAT = "format=ID,Account,ParentName,GrpTRES"


def accounts_in(printed: str, tres: str) -> dict[str, Account]:
    """By name, of `sacctmgr -n -P show assoc ... user= format=ID,Account,ParentName,GrpTRES`."""
    accounts = {}
    for line in printed.splitlines():
        cells = line.split("|")
        if len(cells) != 4:
            raise Unavailable(f"sacctmgr printed what is no association: {line[:80]!r}")
        number, name, parent, limits = cells
        accounts[name] = Account(number=number, name=name, parent=parent, gpus=tres_of(limits).get(tres))
    return accounts


def above(accounts: Mapping[str, Account], name: str) -> Iterator[str]:
    """The accounts over this one, the nearest first."""
    seen: set[str] = set()
    while (name := accounts[name].parent) and name in accounts and name not in seen:
        seen.add(name)
        yield name


class Held(Model):
    """A quota as Slurm holds it."""

    team: Name
    gpus: GpuCount
    parent: Name | None = None


def quotas_of(accounts: Mapping[str, Account], source: SlurmSource) -> dict[str, Held]:
    """Accounts under the root that have a limit, by name; those for flex have none of their own.

    An account without a limit promises nothing; the next one above that has one is its children's parent.
    """
    quotas: dict[str, Held] = {}
    for name, account in accounts.items():
        chain = list(above(accounts, name))
        if account.gpus is None or source.root not in chain or source.flex_root in (name, *chain):
            continue
        inside = chain[: chain.index(source.root)]
        parent = next((one for one in inside if accounts[one].gpus is not None), None)
        quotas[name] = Held(team=name, gpus=account.gpus, parent=parent)
    return quotas


def admitted(gpus: int, mode: LimitMode, earlier: int | None) -> int:
    """The limit to enforce: of a soft quota what was admitted before it was lowered (DESIGN.md, "soft, hard")."""
    return gpus if mode is LimitMode.HARD or earlier is None else max(gpus, earlier)


# --- transactions ------------------------------------------------------------------------------

TRANSACTIONS_FORMAT = "format=TimeStamp,Actor,Action,Where,Info"


def actors_in(printed: str) -> dict[str, str]:
    """Who changed which association last, by its number, of `sacctmgr -n -P list transactions`."""
    actors = {}
    for line in printed.splitlines():
        cells = line.split("|", 4)
        if len(cells) == 5 and cells[2] in ("Modify Associations", "Add Associations", "Remove Associations"):
            for number in re.findall(r"id_assoc=(\d+)", cells[3]):
                actors[number] = cells[1]
    return actors


# --- nodes -------------------------------------------------------------------------------------

_BASES = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset({"COMPLETING", "PLANNED", "RESERVED", "CLOUD"})
"""What a node may be beside, with a job still to be placed on it. Any other word, known or not, is no health."""


class Node(Model):
    name: Name
    gpus: GpuCount
    healthy: bool
    state: str


def nodes_in(printed: str, gres: str) -> tuple[Node, ...]:
    """Nodes that have such GPUs, of `scontrol -o show nodes`."""
    nodes = []
    for line in printed.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "NodeName" not in fields:
            continue
        gpus = tres_of(fields.get("CfgTRES", "")).get(f"gres/{gres}") or _gres(fields.get("Gres", ""), gres)
        if gpus:
            state = fields.get("State", "")
            nodes.append(Node(name=fields["NodeName"], gpus=gpus, healthy=_healthy(state), state=state))
    return tuple(nodes)


def _healthy(state: str) -> bool:
    base, *flags = state.split("+")
    return base in _BASES and set(flags) <= _HARMLESS


def _gres(text: str, gres: str) -> int:
    """Of `gpu:h100:8(S:0-1),gpu:a100:2`; a kind after a colon is one of them."""
    counts = (re.fullmatch(r"([^()]*?)(?::(\d+))?(?:\(.*\))?", part) for part in re.split(r",(?![^()]*\))", text))
    wanted = gres.split(":")
    total = 0
    for match in counts:
        if match is not None and match[1] and match[1].split(":")[: len(wanted)] == wanted:
            total += int(match[2] or 1)
    return total


def islands_in(printed: str) -> dict[str, frozenset[str]]:
    """Nodes by leaf switch, of `scontrol -o show topology`."""
    islands = {}
    for line in printed.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if fields.get("Level") == "0" and "SwitchName" in fields:
            islands[fields["SwitchName"]] = frozenset(hosts(fields.get("Nodes", "")))
    return islands


def hosts(text: str) -> Iterator[str]:
    """The names that `gpu[001-003,7],login1` stands for."""
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        yield from _expanded(part)


def _expanded(part: str) -> Iterator[str]:
    match = re.search(r"\[([^\]]*)\]", part)
    if match is None:
        yield part
        return
    before, after = part[: match.start()], part[match.end() :]
    for piece in match[1].split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _expanded(f"{before}{number:0{len(first)}d}{after}")


def capacity(nodes: Sequence[Node], islands: Mapping[str, Iterable[str]]) -> tuple[Island, ...]:
    """Islands by name. A node in none of them is in an island of its own kind: `main`."""
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
    """A job that runs or waits."""

    number: int
    name: str
    account: str
    qos: str
    gpus: int
    runs: bool
    started: datetime | None = None
    nodes: tuple[str, ...] = Field(default=())


def jobs_in(printed: str, tres: str) -> tuple[SlurmJob, ...]:
    """Jobs with such GPUs, of `squeue --json`. Errors: Unavailable for what is no such document."""
    try:
        rows = json.loads(printed)["jobs"]
        return tuple(job for row in rows if (job := _slurm_job(row, tres)) is not None)
    except (ValueError, LookupError, TypeError) as error:
        raise Unavailable(f"squeue --json printed what we cannot read: {type(error).__name__} {error}") from None


def _slurm_job(row: Mapping[str, Any], tres: str) -> SlurmJob | None:
    states = row["job_state"]  # a word, and in later releases a list of words
    state = states if isinstance(states, str) else states[0]
    if state not in ("RUNNING", "PENDING", "SUSPENDED", "COMPLETING"):
        return None
    runs = state != "PENDING"
    gpus = tres_of(str(row.get("tres_alloc_str" if runs else "tres_req_str") or "")).get(tres, 0)
    if not gpus:
        return None
    started = _number(row.get("start_time"))
    return SlurmJob(
        number=int(row["job_id"]),
        name=str(row.get("name") or row["job_id"]),
        account=str(row["account"]),
        qos=str(row.get("qos") or ""),
        gpus=gpus,
        runs=runs,
        started=datetime.fromtimestamp(started, UTC) if runs and started else None,
        nodes=tuple(hosts(str(row.get("nodes") or ""))) if runs else (),
    )


def _number(value: Any) -> int:
    """A number, and in later releases {"set": true, "number": 3}."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value.get("set") else 0
    return int(value or 0)


def team_of(job: SlurmJob, teams: Iterable[str], source: SlurmSource) -> tuple[str, RunsOn] | None:
    """Whose job it is, and what it runs on; None for one of no team."""
    names = set(teams)
    if job.account in names:
        return job.account, RunsOn.FLEX if job.qos == source.flex_qos else RunsOn.QUOTA
    team = job.account.removesuffix(source.flex_suffix)
    return (team, RunsOn.FLEX) if team in names and team != job.account else None


def use_of(jobs: Sequence[SlurmJob], teams: Iterable[str], source: SlurmSource, now: datetime) -> list[TeamUsage]:
    """What each team's jobs hold and wait for on its quota. Slurm does not say which GPUs idle: none is said to."""
    names = sorted(teams)
    held, waits = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for job in jobs:
        whose = team_of(job, names, source)
        if whose is not None and whose[1] is RunsOn.QUOTA:
            (held if job.runs else waits)[whose[0]] += job.gpus
    return [TeamUsage(team=t, scheduled_gpus=held[t], pending_gpus=waits[t], at=now) for t in names]


def named_jobs(
    jobs: Sequence[SlurmJob], teams: Collection[str], source: SlurmSource, islands: Mapping[str, Iterable[str]]
) -> list[Job]:
    """Those that run, by name and number."""
    of = {node: island for island, names in islands.items() for node in names}
    named = []
    for job in jobs:
        whose = team_of(job, teams, source)
        if whose is None or not job.runs or job.started is None:
            continue
        places = {of.get(node, WHOLE) for node in job.nodes}
        named.append(
            Job(
                job=f"{job.name} ({job.number})",
                team=whose[0],
                gpus=job.gpus,
                on=whose[1],
                island=places.pop() if len(places) == 1 else None,
                started=job.started,
            )
        )
    return named
