"""Fingerprints: a text for each cluster that changes when its rollout has something to learn.

The cursor of the watch is a short hash of each cluster and its signalled state, as heartbeats carry it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from activities.ports.registry import OpenRollout
from models.cluster.island import Island
from models.cluster.readings import HealthSample, QuotaReading, truthful
from models.cluster.snapshot import present_snapshot
from models.cluster.windows import Window, active, span_text
from models.planning.backing import Backing, back
from models.rollout.messages import health_texts, plain_sight

_STALE = timedelta(minutes=30)
_JUST_OPENED = timedelta(minutes=1)
"""How long after its opening a rollout's first signal may be left out; a change reverted meanwhile is not seen."""


@dataclass(frozen=True)
class Facts:
    """The basis of a fingerprint: equal facts have equal fingerprints.

    `version`: of the quotas; `windows`: active ones. `doubted`: the source, if it is in doubt. `to_come`: windows that
    have not begun, so that their effect is known as soon as they are declared. A sample that repeats the last one is no
    news.
    """

    version: str
    guarded: bool
    sample: HealthSample | None = field(compare=False)
    islands: tuple[Island, ...] | None
    stale: bool
    ahead: bool
    beyond: bool
    doubted: str
    at_fault: bool
    windows: tuple[Window, ...]
    to_come: tuple[Window, ...]
    senseless: str = ""
    """Why the cluster's health or windows are unknown; empty: they are known."""


class Judged(NamedTuple):
    """A cluster's facts, their fingerprint, and the GPUs of its quotas that no hardware backs (None: not known).

    `generation`: of its quotas; None: they could not be read. `signalled`: the islands as they were when the mark was
    new. `is_known`: the rollout has nothing to learn from it.
    """

    facts: Facts
    mark: str
    unbacked_gpus: int | None = None
    generation: int | None = None
    signalled: tuple[Island, ...] | None = None
    is_known: bool = False

    @property
    def why(self) -> str:
        """The text of a signal: a rollout that has just seen this, and these healthy GPUs, need not look."""
        guarded = self.facts.guarded and self.facts.islands is not None
        return "; ".join([self.mark, *health_texts(self.facts.islands or ())]) if guarded else self.mark

    def says(self, generation: int | None, islands: Iterable[Island] | None) -> bool:
        """Return whether it says that all is well, with this generation of quotas and these islands."""
        if generation is None or islands is None:
            return False
        return self.why == plain_sight(generation, islands, guarded=self.facts.guarded)

    def is_own_doing(self, before: Judged) -> bool:
        """Return whether all is well and, since this earlier judgement, only the rollout's stage and writes changed."""
        facts = replace(before.facts, guarded=self.facts.guarded, version=self.facts.version)
        if before.facts.guarded == self.facts.guarded or self.facts != facts:
            return False
        return self.says(before.generation, before.signalled)

    def is_just_seen_by(self, opened: OpenRollout, now: datetime) -> bool:
        """Return whether the rollout has just opened, read all this as it did, and all is well."""
        read = opened.baseline
        if opened.adopted_from or read.health_at is None or now - opened.opened_at > _JUST_OPENED:
            return False
        return self.says(read.generation, read.islands)


def facts_of(
    version: str,
    guarded: bool,
    sample: HealthSample | None,
    windows: tuple[Window, ...],
    now: datetime,
    doubted: str = "",
) -> Facts:
    return Facts(
        version=version,
        guarded=guarded,
        sample=sample,
        islands=None if sample is None else sample.islands,
        stale=sample is not None and now - sample.at >= _STALE,
        ahead=sample is not None and (sample.ahead_to is not None or truthful(sample, now) is None),
        beyond=sample is not None and sample.beyond is not None,
        doubted=doubted,
        at_fault=sample is not None and bool(sample.fault),
        windows=active(windows, now),
        to_come=tuple(window for window in windows if window.starts > now),
    )


_MORE, _LESS = "flex may grow", "flex of "


def fingerprint(reading: QuotaReading, facts: Facts, before: str = "", backing: Backing | None = None) -> str:
    """Return a text that changes when a rollout has something to learn. `before`: the last; `backing`: if computed."""
    sample = facts.sample
    unmerged = [f"before {reading.unmerged}"] if reading.unmerged else ["merged"] * reading.merged
    unmerged += ["no merge to wait for"] * reading.awaits_nobody
    if sample is None:
        return "; ".join(["no health", *unmerged])
    parts = [f"generation {reading.generation}", *unmerged, "stale" if facts.stale else "fresh"]
    parts += ["dated ahead"] * facts.ahead + ["more than installed"] * facts.beyond
    parts += [f"source {facts.doubted} in doubt"] if facts.doubted else []
    parts += ["its source is at fault"] * facts.at_fault
    parts += [f"{window.kind} {window.reason}" for window in facts.windows]
    parts += [f"to come {span_text(w)}" for w in facts.to_come]
    if facts.guarded:
        backing = backing or backing_of(reading, sample)
        parts.append(_shortage(backing))
        parts += _flex(reading, backing.healthy_gpus - backing.backed_gpus, before.rpartition("; ")[2])
    else:
        parts += health_texts(sample.islands)
    return "; ".join(parts)


def _flex(reading: QuotaReading, surplus: int, last: str) -> list[str]:
    """Return that the published pool is too large, or may grow; within the band, nothing. `last`: the former result.

    A pool that may grow is so reported while any growth is left: else each step across the band would be signalled. And
    that a shrink has been published is no news for its publisher.
    """
    if not reading.follows_health or reading.flex_gpus is None:
        return []
    if surplus < reading.flex_gpus:
        return [f"{_LESS}{reading.flex_gpus} above {surplus}"]
    beyond = reading.flex_gpus + (0 if last == _MORE else reading.flex_band_gpus)
    if surplus > beyond:
        return [_MORE]
    return [last] if last.startswith(_LESS) else []


_SHORT = "short "


def is_short(mark: str) -> bool:
    """Return whether hardware is lacking, which is signalled first."""
    return _SHORT in mark


def is_wrong(mark: str, facts: Facts) -> bool:
    """Return whether no rollout should rest: too little hardware, too much published flex, doubtful health."""
    unknown = facts.sample is None or facts.stale or facts.ahead or facts.beyond or facts.doubted or facts.at_fault
    return bool(facts.senseless or unknown) or is_short(mark) or _LESS in mark


def backing_of(reading: QuotaReading, sample: HealthSample) -> Backing:
    return back(present_snapshot(reading, sample.islands))


def _shortage(backing: Backing) -> str:
    if backing.is_backed:
        return "backed"
    return _SHORT + ", ".join(f"{team} {gpus}" for team, gpus in backing.shortage.items())


_DIGEST_BYTES = 6
"""Bytes of a mark: of 10,000 clusters, a new mark equals an old one at odds of 1 to 28,000,000,000; 80 kB of cursor."""


def digest(cluster: str, mark: str) -> bytes:
    return hashlib.blake2b(f"{cluster}\0{mark}".encode(), digest_size=_DIGEST_BYTES).digest()


def cursor_of(told_marks: Iterable[bytes]) -> str:
    """Pack the marks for the heartbeat: in full they would be a megabyte for 10,000 clusters."""
    return base64.b64encode(b"".join(told_marks)).decode()


def unpack_cursor(cursor: object) -> Set[bytes]:
    """Unpack a cursor; anything else is an empty one. Earlier versions kept the marks themselves by cluster."""
    if isinstance(cursor, dict):
        return {digest(cluster, str(mark)) for cluster, mark in cursor.items()}
    if not isinstance(cursor, str):
        return set()
    with contextlib.suppress(ValueError):
        digests = base64.b64decode(cursor, validate=True)
        return {digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES)}
    return set()
