"""The lines of an import, one for each difference, and the terms on which a file is taken."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from models.base import Count, Model, Name
from models.cluster.fleet_file import Fleet
from models.hashes import canonical_json, hash_of

FilePlace = tuple[str | int, ...]
"""A path in the file, such as `("clusters", 2, "quotas", 0)`."""

MOST_LINES = 2000
"""The most lines of an answer; further ones are only counted. A file of a new fleet has a line for each cluster."""

NOTHING_STAGED = "the ledger has nothing of this upload: import again"
"""The workers' answer where an upload went into another ledger than theirs, or was forgotten."""


class Verb(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    KEPT = "kept"
    """The present value stays: it is newer than the file (from a rollout or a grant), or another system holds it."""
    LEFT_OUT = "left_out"
    """The ledger has the entry and the file does not. It stays, unless the import prunes."""
    REFUSED = "refused"


WRITES = frozenset({Verb.ADDED, Verb.CHANGED, Verb.REMOVED})
"""The verbs of lines that change the ledger."""
_FIRST = (Verb.REFUSED, Verb.REMOVED, Verb.CHANGED, Verb.KEPT, Verb.ADDED, Verb.LEFT_OUT)


class Line(Model):
    """A difference. Values as people read them, without secrets."""

    verb: Verb
    kind: str
    """cluster, island, quota, window, team, policy, or field for another field of a cluster."""
    cluster: str = ""
    """The cluster's name; empty: the line is about the whole fleet."""
    name: str = ""
    """The name of the island, team, setting or field."""
    field: str = ""
    """The quota's field; empty: the whole quota, or no quota."""
    before: str = ""
    after: str = ""
    why: str = ""
    path: FilePlace = ()

    @property
    def what(self) -> str:
        """A text such as `h100 quota research: gpus`."""
        if self.kind == "cluster":
            return f"cluster {self.cluster}"
        parts = [self.cluster, self.kind if self.kind != "field" else "", self.name]
        return " ".join(part for part in parts if part) + (f": {self.field}" if self.field else "")

    @property
    def sentence(self) -> str:
        move = f"{self.before} -> {self.after}" if self.before and self.after else self.before or self.after
        return f"{self.what}{' ' if self.field else ': ' * bool(move)}{move}{': ' * bool(self.why)}{self.why}"


class ImportTerms(Model):
    """The terms on which a file is taken."""

    file: str = ""
    """The file's name, for the audit."""
    dry_run: bool = False
    prune: bool = False
    whole: bool = False
    """True: one refused line keeps the whole file out."""
    partial: bool = False
    """True: the file is a table, and fields without a column stay as they are."""
    reset: bool = False
    """True: where no rollout is open, the file's values replace even those that a rollout or a grant wrote."""
    agreed: str = ""
    """The hash of the removals that a person has seen. If other removals are due now, nothing is imported."""
    policy: str = Field(default="", exclude_if=lambda digest: not digest)
    """The hash of the policy changes that two admins agreed to. If others are due now, nothing is imported."""


class Oddity(Model):
    """A legal but odd entry, and its place."""

    text: str
    path: FilePlace = ()


class FleetOutcome(Model):
    """The outcome of an import, or of a dry run."""

    lines: tuple[Line, ...]
    """At most MOST_LINES lines, refusals first."""
    totals: dict[Verb, int]
    untouched: dict[str, int]
    """The numbers of the file's clusters, quotas and teams that stay as they are."""
    counts: dict[str, int]
    """The numbers of clusters and quotas that were imported, and of quotas added, changed and removed."""
    oddities: tuple[Oddity, ...] = ()
    removal: str = ""
    """The hash of the removals. Whoever has seen them sends it back as `ImportTerms.agreed`."""
    policy: str = ""
    """The hash of the policy changes, for the fleet and for clusters; empty: there are none."""
    awaits_second: bool = False
    """True: nothing was imported, because another admin has to countersign the policy changes."""
    done: bool = False

    def of(self, verb: Verb) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.verb is verb)

    @property
    def differs(self) -> bool:
        return any(self.totals.get(verb) for verb in (*WRITES, Verb.REFUSED))


class Departure(Model):
    """The outcome of removing or renaming a cluster."""

    cluster: Name
    summary: str
    history: dict[str, Count] = Field(default_factory=dict)
    """The number of rows of each kind that is not in a fleet file: health samples, rollouts and the like."""
    barred: str = ""
    """Why the cluster cannot be removed or renamed; empty: it can."""
    done: bool = False


def outcome_of(
    fleet: Fleet, lines: Sequence[Line], counts: dict[str, int], oddities: Sequence[Oddity], *, done: bool
) -> FleetOutcome:
    """Return the outcome: bounded lines, and all of them counted."""
    ordered = [line for verb in _FIRST for line in lines if line.verb is verb]
    removed = [line for line in ordered if line.verb is Verb.REMOVED]
    moved = {line.cluster for line in lines if line.verb is not Verb.LEFT_OUT and line.cluster}
    quotas = {(line.cluster, line.name) for line in lines if line.kind == "quota" and line.verb is not Verb.LEFT_OUT}
    whole = {line.cluster for line in lines if line.kind == "cluster"}
    teams = {line.name for line in lines if line.kind == "team"}
    untouched = {
        "clusters": sum(cluster.name not in moved for cluster in fleet.clusters),
        "quotas": sum(
            c.name not in whole and (c.name, quota.team) not in quotas for c in fleet.clusters for quota in c.quotas
        ),
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
    """Return the own policies of new clusters, by cluster."""
    new = {line.cluster for line in lines if line.kind == "cluster" and line.verb is Verb.ADDED}
    return {cluster.name: cluster.policy for cluster in fleet.clusters if cluster.name in new and cluster.policy}


def _policy_hash(fleet: Fleet, lines: Sequence[Line]) -> str:
    """Return the hash of each setting that changes, and of the policies that new clusters bring."""
    changed = [line.sentence for line in lines if line.kind == "policy" and line.verb in WRITES]
    brought = policies_brought(fleet, lines)
    if not changed and not brought:
        return ""
    return hashlib.sha256(canonical_json([sorted(changed), brought]).encode()).hexdigest()
