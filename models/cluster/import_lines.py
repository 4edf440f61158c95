"""What an import does, as it is told: a line for each difference, and the terms on which a file is taken."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from models.base import Count, Model, Name, canonical_json, hash_of
from models.cluster.fleet_file import Fleet

FilePlace = tuple[str | int, ...]
"""Where something stands in the file: `("clusters", 2, "quotas", 0)`."""

MOST_LINES = 2000
"""Of an answer: what is beyond is counted. A file of a new fleet has a line for each cluster."""


class Verb(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    KEPT = "kept"
    """The file is older than what a rollout or a grant wrote, or Slurm says it: that stays."""
    LEFT_OUT = "left_out"
    """It is in the ledger but not in the file: it stays, and pruning removes it."""
    REFUSED = "refused"


WRITES = frozenset({Verb.ADDED, Verb.CHANGED, Verb.REMOVED})
"""What changes the ledger."""
_FIRST = (Verb.REFUSED, Verb.REMOVED, Verb.CHANGED, Verb.KEPT, Verb.ADDED, Verb.LEFT_OUT)


class Line(Model):
    """One difference. Values as people read them, without secrets."""

    verb: Verb
    kind: str
    """cluster, island, quota, window, team, policy, or field for what else a cluster says."""
    cluster: str = ""
    """Empty: of the fleet as a whole."""
    name: str = ""
    """The island's, the team's, the setting's or the field's."""
    field: str = ""
    """Of a quota."""
    before: str = ""
    after: str = ""
    why: str = ""
    path: FilePlace = ()

    @property
    def what(self) -> str:
        """`h100 quota research: gpus`."""
        if self.kind == "cluster":
            return f"cluster {self.cluster}"
        parts = [self.cluster, self.kind if self.kind != "field" else "", self.name]
        return " ".join(p for p in parts if p) + (f": {self.field}" if self.field else "")

    @property
    def sentence(self) -> str:
        move = f"{self.before} -> {self.after}" if self.before and self.after else self.before or self.after
        return f"{self.what}{' ' if self.field else ': ' * bool(move)}{move}{': ' * bool(self.why)}{self.why}"


class ImportTerms(Model):
    """How a file is to be taken."""

    file: str = ""
    """What people call it: it stands in the audit."""
    dry_run: bool = False
    prune: bool = False
    whole: bool = False
    """Nothing goes in where a line is refused."""
    partial: bool = False
    """The file is a table: it says nothing of fields that it has no column for."""
    reset: bool = False
    """Where no rollout is open, the file's values are meant also where a rollout or a grant has written over them."""
    agreed: str = ""
    """The hash of what somebody has seen to be removed; nothing goes in where that would be something else by now."""
    policy: str = Field(default="", exclude_if=lambda digest: not digest)
    """The hash of the changes of policy that two admins give; nothing goes in where it would be others by now."""


class Oddity(Model):
    """What is legal and odd, and where it stands."""

    text: str
    path: FilePlace = ()


class FleetOutcome(Model):
    """What an import does, or did."""

    lines: tuple[Line, ...]
    """The first of them, refusals first."""
    totals: dict[Verb, int]
    untouched: dict[str, int]
    """Of the file's clusters, quotas and teams: how many are as they stand."""
    counts: dict[str, int]
    """Clusters and quotas that went in; of the quotas those that were added, changed and removed."""
    oddities: tuple[Oddity, ...] = ()
    removal: str = ""
    """The hash of what is removed."""
    policy: str = ""
    """The hash of what changes of policies, the fleet's and clusters'; empty: nothing."""
    awaits_second: bool = False
    """Nothing is done: another admin has to give the changes of policy too."""
    done: bool = False

    def of(self, verb: Verb) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.verb is verb)

    @property
    def differs(self) -> bool:
        return any(self.totals.get(verb) for verb in (*WRITES, Verb.REFUSED))


class Departure(Model):
    """What became of a cluster that was taken out, or is called otherwise now."""

    cluster: Name
    summary: str
    history: dict[str, Count] = Field(default_factory=dict)
    """How many rows there are of each kind that is not in a fleet file: health samples, rollouts and the like."""
    barred: str = ""
    """Why it cannot be; empty: it can."""
    done: bool = False


def outcome_of(
    fleet: Fleet, lines: Sequence[Line], counts: dict[str, int], oddities: Sequence[Oddity], *, done: bool
) -> FleetOutcome:
    """The answer: bounded lines, and all of them counted."""
    ordered = [line for verb in _FIRST for line in lines if line.verb is verb]
    removed = [line for line in ordered if line.verb is Verb.REMOVED]
    moved = {line.cluster for line in lines if line.verb is not Verb.LEFT_OUT and line.cluster}
    quotas = {(line.cluster, line.name) for line in lines if line.kind == "quota" and line.verb is not Verb.LEFT_OUT}
    whole = {line.cluster for line in lines if line.kind == "cluster"}
    teams = {line.name for line in lines if line.kind == "team"}
    untouched = {
        "clusters": sum(c.name not in moved for c in fleet.clusters),
        "quotas": sum(c.name not in whole and (c.name, q.team) not in quotas for c in fleet.clusters for q in c.quotas),
        "teams": sum(team.name not in teams for team in fleet.teams),
    }
    return FleetOutcome(
        lines=tuple(ordered[:MOST_LINES]),
        totals=dict(Counter(line.verb for line in ordered)),
        untouched=untouched,
        counts=counts,
        oddities=tuple(oddities),
        removal=hash_of("\n".join(line.sentence for line in removed)),
        policy=_policy_hash(fleet, lines),
        done=done,
    )


def policies_brought(fleet: Fleet, lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """By cluster: the policies of their own with which new clusters come."""
    new = {line.cluster for line in lines if line.kind == "cluster" and line.verb is Verb.ADDED}
    return {c.name: c.policy for c in fleet.clusters if c.name in new and c.policy}


def _policy_hash(fleet: Fleet, lines: Sequence[Line]) -> str:
    """Of each setting that changes, and of the policies that new clusters bring."""
    changed = [line.sentence for line in lines if line.kind == "policy" and line.verb in WRITES]
    brought = policies_brought(fleet, lines)
    if not changed and not brought:
        return ""
    return hashlib.sha256(canonical_json([sorted(changed), brought]).encode()).hexdigest()
