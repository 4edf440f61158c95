"""Quotas in a Git repository, beside the ledger that mirrors them (docs/adr/0112).

The ledger has generations, fences and receipts, as it has for Slurm. But Git can compare and set, so an effect is
written to Git first: it is tried in the ledger, the commit is made on the very commit whose values the ledger has, the
push is refused if the branch has moved, and only then the ledger keeps the effect. A refused push is judged again from
the branch's present values. If a worker dies between the two, the ledger has not kept our commit yet: it is nobody's
change, and the next delivery of the effect finds it by its trailers.

Where the source says `propose`, the commit goes to a branch of its own, and the ledger keeps the effect once the
tracked branch has its values (merges.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from activities.adapters.git.command_line import GitTerms
from activities.adapters.git.merges import Merge, MergeReader, branch_of, declined_text, prefix_of, waiting_text
from activities.adapters.git.repository import File, OurCommit, Repository
from activities.adapters.ledger.awaited_merges import AwaitedMerge
from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.scheduler_mirror import MirroredCluster, moves_to, wanted_gpus
from activities.adapters.mirrored_quotas import TRIES, MirroredQuotas
from activities.ports.by_cluster import ByCluster
from activities.ports.quota_systems import QuotaPort, SchedulerPort
from activities.quota_files.dialects import SUFFIXES, BranchQuotas, changed_files, places_in
from activities.quota_files.yaml_text import WrittenNumber
from models.cluster.readings import QuotaReading
from models.cluster.sources import GitMode, GitSource
from models.errors import AwaitsMerge, Conflict, Refusal, Unavailable
from models.rollout.effects import Change, EffectKind, Fence, Receipt
from models.texts import count_text

_INVERSES = (EffectKind.RESTORE, EffectKind.SOFTEN)


class _Sight(NamedTuple):
    """The state of a cluster's branch at one commit."""

    repository: Repository
    tip: str
    files: Mapping[str, File]
    texts: Mapping[str, str]
    places: Mapping[str, WrittenNumber]
    newest: OurCommit | None
    pending: Mapping[str, int]
    """The quotas that our commit wrote and that are not in the ledger yet, by team."""
    merge: Merge | None = None
    """The effect that waits for people to merge it; None: none waits."""

    @property
    def gpus(self) -> dict[str, int]:
        return {team: place.gpus for team, place in self.places.items()}


class GitQuotas(MirroredQuotas[GitSource, _Sight]):
    """QuotaPort and SchedulerPort: those of other clusters, and for clusters that Git holds of Git and the ledger.

    `folder`: keeps the fetched repositories; None: until this process ends. `every`: how old a reading may be.
    """

    system, what = "git", "quotas in Git"

    def __init__(
        self,
        ledger: Ledger,
        others: QuotaPort,
        schedulers: SchedulerPort,
        folder: Path | None = None,
        terms: GitTerms | None = None,
        every: timedelta = timedelta(seconds=5),
    ) -> None:
        super().__init__(ledger, others, schedulers, every)
        self._terms = terms or GitTerms()
        self._kept_in = folder or TemporaryDirectory(prefix="backstop-git-")
        self._repositories: dict[tuple[str, str, bool], Repository] = {}
        self._sights: dict[str, tuple[GitSource, _Sight]] = {}
        self._merges = MergeReader(ledger.merges)
        self._seen: dict[str, tuple[str, bool, bool]] = {}
        """By cluster, as last read: the effect's branch, whether people can merge it, and whether they have."""

    # --- QuotaPort ------------------------------------------------------------------------------

    def read(self, cluster: str) -> QuotaReading:
        source = self._source(cluster)
        return self._with_merge(self._read_of(cluster, source), source)

    def look(self, cluster: str) -> QuotaReading:
        source = self._source(cluster)
        return self._with_merge(self._look_of(cluster, source), source)

    def last_known(self, cluster: str) -> QuotaReading:
        return self._with_merge(super().last_known(cluster), self._source(cluster))

    def _with_merge(self, reading: QuotaReading, source: GitSource | None) -> QuotaReading:
        merges = {} if source is None else self._merges_seen({reading.cluster: source})
        branch, is_open, is_merged = merges.get(reading.cluster, ("", False, False))
        return _with_branch(reading, branch, is_open, is_merged) if branch else reading

    def _merges_seen(self, sources: Mapping[str, GitSource]) -> dict[str, tuple[str, bool, bool]]:
        """Return by cluster the branch with an effect, as `_seen`. Where Backstop may push, it waits for nobody."""
        merges = dict[str, tuple[str, bool, bool]]()
        for cluster, effect in self._ledger.merges.of_clusters(list(sources)).items():
            seen = self._seen.get(cluster, ("", False, False))
            branch, is_open, is_merged = seen if seen[0] == effect.branch else (effect.branch, True, False)
            merges[cluster] = branch, is_open and sources[cluster].mode is GitMode.PROPOSE, is_merged
        return merges

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        sources = self._sources(clusters)
        readings = self._readings_of(clusters, sources)
        for cluster, (branch, is_open, is_merged) in self._merges_seen(sources).items():
            if cluster in readings:
                readings[cluster] = _with_branch(readings[cluster], branch, is_open, is_merged)
        return readings

    def _barred_reason(self, cluster: str, source: GitSource, sight: _Sight) -> str:
        branch = f"{prefix_of(cluster)}check" if source.mode is GitMode.PROPOSE else ""
        return sight.repository.barred_reason(sight.tip, branch)

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        sources = self._sources(clusters)
        versions = self._versions_of(clusters, sources)
        for cluster, (branch, is_open, is_merged) in self._merges_seen(sources).items():
            if cluster in versions:
                versions[cluster] += f" {'before' if is_open else 'with' if is_merged else 'without'} {branch}"
        return versions

    def apply(self, change: Change) -> Receipt:
        source = self._source(change.cluster)
        if source is None:
            return self._others.apply(change)
        if source.mode is GitMode.PROPOSE:
            return self._propose(change, source)
        with self._book.lock_cluster(change.cluster):
            for _ in range(TRIES):
                sight = self._sync(change.cluster, source)
                if sight.merge is not None and sight.merge.commit:  # proposed before Backstop might push
                    self._withdraw(change.cluster, sight, sight.merge)
                    continue
                if self._has_landed(sight, change):
                    after = self._rehearse_begun(change, sight)
                    return self._keep_effect(sight, after, change.but(expected_generation=None))
                before = self._book.mirrored_cluster(change.cluster)
                after = self._book.rehearse(change)
                gpus = _moves_of(change, sight, before, after)
                if not gpus and not self._needs_fence(sight, change):
                    return self._keep_effect(sight, after, change)
                message = self._message(change, sight, gpus)
                if self._push(change.cluster, sight, gpus, message):
                    return self._keep_effect(sight, after, change.but(expected_generation=None))
        raise Unavailable(f"the branch of {change.cluster} moves faster than Backstop can push to it")

    def _propose(self, change: Change, source: GitSource) -> Receipt:
        """Keep the effect once the tracked branch has its values. Errors: AwaitsMerge; Refusal if people declined it.

        A branch that is not wanted any more is deleted first, and then the tracked branch is read again: it may have
        been merged before.
        """
        cluster, gone = change.cluster, ""
        with self._book.lock_cluster(cluster):
            for _ in range(TRIES):
                sight = self._sync(cluster, source)
                merge, before = sight.merge, self._book.mirrored_cluster(cluster)
                if merge is not None and merge.has_landed(change):
                    after = self._rehearse_begun(change, sight)
                    change = change.but(expected_generation=None)
                else:
                    after = self._book.rehearse(change)
                moves = _moves_of(change, sight, before, after)
                if merge is not None and merge.is_of(change, moves):
                    if merge.is_open:
                        asked = merge.effect.but(asked_at=self._ledger.now(), pushed=True)
                        self._ledger.merges.keep(cluster, asked)
                        raise AwaitsMerge(waiting_text(source, asked))
                    if merge.is_gone and gone:
                        self._ledger.merges.drop(cluster)
                        raise Refusal(declined_text(source, merge.effect))
                    gone = merge.effect.branch if merge.is_gone else ""
                    if gone:
                        continue  # a forge merges first and deletes then
                if merge is not None and merge.commit and (moves or merge.ends_with(change)):
                    self._withdraw(cluster, sight, merge)
                    continue
                if moves:
                    raise AwaitsMerge(waiting_text(source, self._push_branch(change, sight, moves)))
                return self._keep_effect(sight, after, change)
        raise Unavailable(f"the branch of {cluster} moves faster than Backstop can push to it")

    def _withdraw(self, cluster: str, sight: _Sight, merge: Merge) -> None:
        """Delete the branch of an effect. Then read again: it may have been merged before."""
        self._ledger.merges.keep(cluster, merge.effect.but(pushed=False))
        sight.repository.withdraw(merge.effect.branch, merge.commit)

    def _push_branch(self, change: Change, sight: _Sight, gpus: Mapping[str, int]) -> AwaitedMerge:
        """Push the effect to a branch of its own. The ledger has it first, so that no branch is without an owner."""
        now, cluster = self._ledger.now(), change.cluster
        before = {team: sight.places[team].gpus for team in gpus}
        texts = _changed_texts(sight, gpus)
        commit = sight.repository.commit(sight.tip, sight.files, texts, self._message(change, sight, gpus), now)
        effect = AwaitedMerge(
            fence=change.fence,
            kind=change.kind,
            branch=branch_of(change),
            at=now,
            asked_at=now,
            gpus=dict(gpus),
            before=before,
        )
        self._book.renew(cluster)
        self._ledger.merges.keep(cluster, effect)
        self._book.renew(cluster)
        if not sight.repository.propose(commit, effect.branch):
            raise Unavailable(f"the repository already has another branch named {effect.branch}: Backstop tries again")
        self._book.renew(cluster)  # else it came too late: whoever reads the branches next deletes it
        self._ledger.merges.keep(cluster, effect.but(pushed=True))
        return effect

    def _has_landed(self, sight: _Sight, change: Change) -> bool:
        """Return whether the branch has this very effect already. Errors: Conflict if it has a newer one."""
        ours, fence = sight.newest, change.fence
        if ours is None or ours.rollout != fence.rollout:
            return False
        if ours.counter > fence.counter:
            raise Conflict(
                f"effect {fence.counter} of {fence.rollout} came too late and was not written: "
                f"the branch already has a later one, effect {ours.counter}, in commit {ours.oid[:8]}"
            )
        return ours.counter == fence.counter

    def _needs_fence(self, sight: _Sight, change: Change) -> bool:
        """Return whether a delayed worker might still push what is undone here: then a commit keeps it out.

        If the rollout's newest commit undoes, too, nothing can be on its way.
        """
        ours, fence = sight.newest, change.fence
        undoes = ours is not None and ours.rollout == fence.rollout and ours.kind in _INVERSES
        return change.kind in _INVERSES and not undoes

    def _push(self, cluster: str, sight: _Sight, gpus: Mapping[str, int], message: str) -> bool:
        """Return False if the branch has moved on."""
        texts = _changed_texts(sight, gpus)
        commit = sight.repository.commit(sight.tip, sight.files, texts, message, self._ledger.now())
        self._book.renew(cluster)
        return sight.repository.push(commit)

    def _keep_effect(self, sight: _Sight, after: MirroredCluster, change: Change) -> Receipt:
        receipt = super()._keep_effect(sight, after, change)
        if sight.merge is not None and sight.merge.ends_with(change):
            self._ledger.merges.drop(change.cluster)
        return receipt

    def detach(self, cluster: str, *, restore: bool, look: bool = False) -> dict[str, tuple[int | None, int | None]]:
        source = self._source(cluster)
        if source is None:
            return self._schedulers.detach(cluster, restore=restore, look=look)
        with self._book.lock_cluster(cluster):
            for _ in range(TRIES):
                sight = self._sync(cluster, source)
                back, gpus = self._limits_back(cluster, sight, restore=restore)
                message = f"Restore {count_text(len(gpus), 'quota')} of {cluster} to the state before Backstop\n"
                if gpus and not look and source.mode is GitMode.PROPOSE:
                    raise Refusal(
                        f"Backstop may only propose changes to {cluster} (mode: propose), so --restore cannot push "
                        f"{count_text(len(gpus), 'quota')}: detach without --restore, and "
                        "change the quotas in Git yourself"
                    )
                if look or not gpus or self._push(cluster, sight, gpus, message):
                    if not look:
                        self._book.detach(cluster)
                        self._ledger.merges.drop(cluster)
                    return back
        raise Unavailable(f"the branch of {cluster} moves faster than Backstop can push to it")

    # --- reading --------------------------------------------------------------------------------

    def last_read(self, cluster: str) -> BranchQuotas | None:
        """Return the cluster's branch as last fetched; None: this worker has not fetched it."""
        read = self._sights.get(cluster)
        return None if read is None else BranchQuotas(read[1].tip, read[1].gpus)

    def _sources(self, clusters: Sequence[str] | None = None) -> Mapping[str, GitSource]:
        return self._book.git_sources(clusters)

    @property
    def _folder(self) -> Path:
        return self._kept_in if isinstance(self._kept_in, Path) else Path(self._kept_in.name)

    def _look_at_system(self, cluster: str, source: GitSource) -> _Sight:
        proposes = source.mode is GitMode.PROPOSE or self._ledger.merges.of_cluster(cluster) is not None
        url, branch, _ = key = source.repository, source.branch, proposes
        new = Repository(url, branch, self._folder, self._terms, proposes=proposes)
        repository = self._repositories.setdefault(key, new)
        tip = repository.fetch()
        before = self._sights.get(cluster)
        if before is not None and before[0] == source and before[1].tip == tip:
            sight = before[1]._replace(repository=repository)
        else:
            sight = self._parse_commit(cluster, source, repository, tip)
            self._sights[cluster] = source, sight
        if proposes:
            merge = self._merges.read(cluster, repository, tip, sight.gpus)
            if merge is not None:
                self._seen[cluster] = merge.effect.branch, merge.is_open, merge.is_merged
                return sight._replace(merge=merge, pending=merge.pending)
        ours = sight.newest  # it was pushed, if Backstop might push then
        if ours is None or not self._book.awaits(cluster, Fence(rollout=ours.rollout, counter=ours.counter)):
            return sight
        wrote = self._parse_commit(cluster, source, repository, ours.oid).gpus
        return sight._replace(pending={team: gpus for team, gpus in sight.gpus.items() if wrote.get(team) == gpus})

    def _parse_commit(self, cluster: str, source: GitSource, repository: Repository, commit: str) -> _Sight:
        listed = repository.files(commit, source.path)
        files = {path: file for path, file in listed.items() if path == source.path or path.endswith(SUFFIXES)}
        if not files:
            raise Unavailable(
                f"{source.repository} has no quota file at {source.path} on {source.branch} (commit {commit[:8]})"
            )
        texts = repository.texts(files)
        try:
            places = places_in(texts, source)
        except ValueError as error:
            raise Unavailable(f"{error} (commit {commit[:8]})") from None
        newest = repository.newest_of_ours(commit, cluster)
        return _Sight(repository, commit, files, texts, places, newest, {})

    def _actors(self, sight: _Sight, source: GitSource, teams: Sequence[str]) -> dict[str, str]:
        by_path: dict[str, dict[str, int]] = {}
        for team in teams:
            place = sight.places.get(team)
            by_path.setdefault(source.path if place is None else place.path, {})[team] = place.line if place else 0
        actors = dict[str, str]()
        for path, lines in by_path.items():
            authors = sight.repository.authors(sight.tip, path, sorted(filter(None, lines.values())))
            last = sight.repository.author(sight.tip, path) if 0 in lines.values() else ""
            actors |= {team: authors.get(line, last) for team, line in lines.items()}
        return actors

    def _message(self, change: Change, sight: _Sight, gpus: Mapping[str, int]) -> str:
        """Write the commit's message: the quotas that move, and in trailers by whose order."""
        words = change.kind.replace("_", " ")
        what = f"Set {count_text(len(gpus), 'quota')}" if gpus else "Keep the quotas"
        lines = [f"{team}: {sight.places[team].gpus} -> {number}" for team, number in sorted(gpus.items())]
        fence, why = change.fence, self._book.order_of(change.cluster, change.fence.rollout)
        trailers = {
            "Rollout": fence.rollout,
            "Fence": str(fence.counter),
            "Effect": change.kind,
            "Cluster": change.cluster,
            **why,
        }
        body = lines or ["This commit changes no file. It makes Git refuse a late push of an earlier effect."]
        ends = [f"Backstop-{name}: {' '.join(value.split())}" for name, value in trailers.items() if value.strip()]
        return "\n".join((f"{what} of {change.cluster} ({words})", "", *body, "", *ends, ""))


def _with_branch(reading: QuotaReading, branch: str, is_open: bool, is_merged: bool) -> QuotaReading:
    """Return the reading with what became of the branch with an effect."""
    return reading.but(unmerged=branch * is_open, merged=is_merged, awaits_nobody=not (is_open or is_merged))


def _changed_texts(sight: _Sight, gpus: Mapping[str, int]) -> dict[str, str]:
    """Return the files with these quotas. Errors: Refusal."""
    try:
        return changed_files(sight.texts, sight.places, gpus)
    except ValueError as error:
        raise Refusal(f"{error} (commit {sight.tip[:8]})") from None


def _moves_of(change: Change, sight: _Sight, before: MirroredCluster, after: MirroredCluster) -> dict[str, int]:
    """Return the quotas to write so that the branch is as it should be after the effect.

    A forward effect moves what it changes; it does not take back what people merged for another one.
    """
    moves = moves_to(after, sight.gpus)
    if change.kind in _INVERSES:
        return moves
    earlier = wanted_gpus(before)
    return {team: gpus for team, gpus in moves.items() if earlier.get(team) != gpus}
