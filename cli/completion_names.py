"""Names that commands have seen, for completion in the shell: clusters with their stages, teams, holds, requests.

Each Temporal has its own file, so that names of one are never offered for another. It uses only the standard library: a
completion reads it in a few milliseconds. Errors of writing are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

_WHICH = (
    "TEMPORAL_ADDRESS",
    "TEMPORAL_NAMESPACE",
    "TEMPORAL_PROFILE",
    "TEMPORAL_CONFIG_FILE",
    "BACKSTOP_HOME",
    "BACKSTOP_URL",
)
"""The variables that decide which Temporal a command asks (client/connection.py)."""
Kept = dict[str, Any]


def folder() -> str:
    """Return the folder of the names: below BACKSTOP_HOME, else in the user's cache."""
    home = os.environ.get("BACKSTOP_HOME")
    if home:
        return os.path.join(home, "completion")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "backstop")


def file() -> str:
    which = "\n".join(os.environ.get(name, "") for name in _WHICH)
    return os.path.join(folder(), f"names-{zlib.crc32(which.encode()):08x}.json")


def kept_names() -> Kept:
    """Return all names by kind: clusters with stages, teams, holds and windows by cluster, requests with texts."""
    return read(file())


def age() -> float:
    """Return the seconds since all clusters were seen; infinite where they never were."""
    seen = kept_names().get("seen")
    return time.time() - seen if isinstance(seen, int | float) else float("inf")


def note_fleet(clusters: Mapping[str, str], teams: Iterable[str]) -> None:
    """Note all clusters, each with the stage of its open rollout or nothing, and all teams."""
    before = kept_names().get("holds", {})
    holds = {cluster: before[cluster] for cluster in clusters if cluster in before}
    _keep({"clusters": dict(clusters), "teams": sorted({*teams}), "holds": holds, "seen": time.time()})


def note_stages(stages: Mapping[str, str]) -> None:
    """Note the stages of some clusters."""
    _keep({"clusters": {**kept_names().get("clusters", {}), **stages}})


def note_holds(cluster: str, holds: Iterable[str]) -> None:
    """Note the holds of one rollout."""
    _keep({"holds": {**kept_names().get("holds", {}), cluster: [*holds]}})


def note_windows(windows: Iterable[tuple[str, int]]) -> None:
    """Note all declared windows that are not over, each with its cluster."""
    by_cluster: dict[str, list[str]] = {}
    for cluster, number in windows:
        by_cluster.setdefault(cluster, []).append(str(number))
    _keep({"windows": by_cluster})


def note_requests(requests: Mapping[str, str]) -> None:
    """Note the requests that wait for somebody, each with its text."""
    _keep({"requests": dict(requests)})


def _keep(news: Kept) -> None:
    write(file(), {**kept_names(), **news})


def read(path: str) -> Kept:
    try:
        with open(path, encoding="utf-8") as opened:
            document = json.load(opened)
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def write(path: str, document: Kept) -> None:
    """Write the file whole or not at all, for its owner alone."""
    with contextlib.suppress(OSError, ValueError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        aside = f"{path}.{os.getpid()}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            json.dump(document, opened)
        os.replace(aside, path)
