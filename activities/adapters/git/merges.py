"""Effects that people merge: each waits on a branch of its own until the tracked branch has its values (docs/adr/0120).

Merged is what the tracked branch says, by values: a merge commit, a squash, a rebase and a person who makes the same
change by hand are alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from activities.adapters.git.repository import OWN_BRANCHES, Repository
from activities.adapters.ledger.awaited_merges import AwaitedMerge, LedgerMerges
from models.cluster.sources import GitSource
from models.errors import Refusal, Unavailable
from models.rollout.effects import Change, EffectKind
from models.texts import some_of

_ENDS = (EffectKind.RESTORE, EffectKind.SOFTEN, EffectKind.RELEASE, EffectKind.CLOSE)
"""Effects after which no earlier effect may be merged any more."""
_NOT_IN_A_BRANCH = re.compile(r"[^\w-]+", re.ASCII)


class Merge(NamedTuple):
    """An effect on a branch, as seen at one commit of the tracked branch."""

    effect: AwaitedMerge
    commit: str
    """The newest commit of the effect's branch; empty: the branch is gone."""
    gpus: Mapping[str, int]
    """The tracked branch's present quotas."""
    fits: bool
    """Whether git can merge the branch without a conflict."""

    @property
    def is_open(self) -> bool:
        """Return whether people can merge it, and would get what the effect means."""
        return bool(self.commit) and self.fits and not self.is_merged and self.is_based(self.gpus)

    @property
    def is_gone(self) -> bool:
        """Return whether its branch was there and is no more."""
        return self.effect.pushed and not self.commit

    @property
    def is_merged(self) -> bool:
        return all(self.gpus.get(team) == gpus for team, gpus in self.effect.gpus.items())

    def is_based(self, gpus: Mapping[str, int]) -> bool:
        """Return whether these are the quotas on which it was made."""
        return all(gpus.get(team) == before for team, before in self.effect.before.items())

    def is_of(self, change: Change, moves: Mapping[str, int]) -> bool:
        """Return whether it is this effect, which would move these quotas now."""
        effect = self.effect
        return self._is_same(change) and effect.gpus == dict(moves) and self.is_based(self.gpus)

    def has_landed(self, change: Change) -> bool:
        """Return whether it is this effect, and people have merged it."""
        return self._is_same(change) and self.is_merged

    def _is_same(self, change: Change) -> bool:
        return (self.effect.fence.rollout, self.effect.kind) == (change.fence.rollout, change.kind)

    def ends_with(self, change: Change) -> bool:
        """Return whether nothing is left to merge once the change has landed."""
        return change.kind in (*_ENDS, self.effect.kind)

    @property
    def pending(self) -> dict[str, int]:
        """The quotas that no person has set: as the effect found them, or as it wants them."""
        effect = self.effect
        return {t: n for t, n in self.gpus.items() if n in (effect.gpus.get(t, -1), effect.before.get(t, -1))}


def prefix_of(cluster: str) -> str:
    """Return the beginning of the names of the cluster's branches."""
    return f"{OWN_BRANCHES}{_NOT_IN_A_BRANCH.sub('-', cluster)}/"


def branch_of(change: Change) -> str:
    rollout = change.fence.rollout.removeprefix(f"{change.cluster}/")
    return f"{prefix_of(change.cluster)}{_NOT_IN_A_BRANCH.sub('-', rollout)}-{change.fence.counter}"


def waiting_text(source: GitSource, effect: AwaitedMerge) -> str:
    """Describe for people what waits, where, since when, and who can end the wait."""
    return (
        f"branch {effect.branch} has waited since {effect.at:%Y-%m-%d %H:%M:%SZ} for a person to merge it "
        f"into {source.branch} of {source.repository}: {_moves_text(effect)}"
    )


def declined_text(source: GitSource, effect: AwaitedMerge) -> str:
    return (
        f"branch {effect.branch} was deleted without being merged into {source.branch}, so Backstop treats its change "
        f"as declined: {_moves_text(effect)}"
    )


def _moves_text(effect: AwaitedMerge) -> str:
    return some_of([f"{team} {effect.before[team]} -> {gpus}" for team, gpus in sorted(effect.gpus.items())], 5)


class MergeReader:
    """Reads which effect of a cluster waits for a merge, and removes branches that none waits for."""

    def __init__(self, book: LedgerMerges) -> None:
        self._book = book
        self._left = set[tuple[str, str]]()
        """Branches, each with its commit, that the server refused to delete; it is asked only once."""

    def read(self, cluster: str, repository: Repository, tip: str, gpus: Mapping[str, int]) -> Merge | None:
        """Return the effect that waits. Its branch was fetched before, and is pushed after the book has the effect."""
        branches = repository.own_branches(prefix_of(cluster))
        effect = self._book.of_cluster(cluster)
        if effect is not None and not self._book.is_wanted(cluster, effect):
            self._book.drop(cluster)
            effect = None
        for branch, commit in branches.items():
            if effect is None or branch != effect.branch:
                self._remove_stray(cluster, repository, branch, commit)
        if effect is None:
            return None
        commit = branches.get(effect.branch, "")
        return Merge(effect, commit, gpus, fits=not commit or repository.can_merge(tip, commit))

    def _remove_stray(self, cluster: str, repository: Repository, branch: str, commit: str) -> None:
        """Delete a branch that a worker pushed too late, or that is merged; leave alone those of another Backstop."""
        if (branch, commit) in self._left:
            return
        ours = repository.newest_of_ours(commit, cluster)
        if ours is None or ours.oid != commit or not self._book.is_ours(ours.rollout):
            return
        with suppress(Refusal, Unavailable):
            repository.withdraw(branch, commit)
        self._left.add((branch, commit))
