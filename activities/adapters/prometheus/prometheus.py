"""Prometheus as a source of health: three queries for all its clusters; what they say is kept in the ledger."""

from __future__ import annotations

import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import Field

from activities.adapters.ledger.facade import Ledger
from activities.adapters.prometheus.queries import Queries, answers, dcgm, samples_of, wanted
from models.base import Duration, Model, Name
from models.cluster.sources import PrometheusSource, Sources
from models.errors import BackstopError, Unavailable

log = logging.getLogger(__name__)
_MOST = 50_000_000


class PrometheusConnection(Model):
    """One Prometheus, in the worker's own settings. Queries that are not given are those for the DCGM exporter."""

    url: Name
    token_file: Name | None = None
    """A file with a bearer token."""
    cluster_label: Name = "cluster"
    island_label: Name = "island"
    ready: str = ""
    """PromQL of nodes that answer, by Hostname; `kubernetes`: those that it says are ready."""
    installed: str | None = None
    healthy: str | None = None
    seen: str | None = None
    timeout: Duration = Field(default=timedelta(seconds=10), gt=timedelta(0), le=timedelta(seconds=50))

    @property
    def queries(self) -> Queries:
        default = dcgm(self.cluster_label, self.island_label, self.ready)
        own = {name: text for name in ("installed", "healthy", "seen") if (text := getattr(self, name)) is not None}
        return default.model_copy(update=own)


class PrometheusConnections(Model):
    """The file that BACKSTOP_PROMETHEUS names."""

    connections: dict[Name, PrometheusConnection]


class Prometheuses:
    """The Prometheus connections of a worker, for clusters whose health one of them has."""

    def __init__(
        self,
        ledger: Ledger,
        connections: Mapping[str, PrometheusConnection],
        every: timedelta = timedelta(seconds=5),
    ) -> None:
        self._ledger = ledger
        self._connections = connections
        self._every = every.total_seconds()
        self._read_at: dict[str, float] = {}

    def refresh_health(self, sources: Sources) -> None:
        by_connection: dict[str, dict[str, PrometheusSource]] = {}
        for cluster, source in sources.prometheus.items():
            by_connection.setdefault(source.connection, {})[cluster] = source
        for name, its_clusters in by_connection.items():
            now = time.monotonic()
            if now - self._read_at.get(name, -self._every) >= self._every:
                self._read_at[name] = now
                self._look(name, its_clusters)

    def _look(self, name: str, sources: Mapping[str, PrometheusSource]) -> None:
        """What is known stands where it does not answer: it grows old, and whoever reads it sees that."""
        try:
            connection = self._connections.get(name)
            if connection is None:
                raise Unavailable(f"this worker has no Prometheus {name!r}: BACKSTOP_PROMETHEUS names them")
            labels = wanted({cluster: source.cluster for cluster, source in sources.items()})
            queries = connection.queries
            installed, healthy, seen = (ask(connection, q) for q in (queries.installed, queries.healthy, queries.seen))
            for sample in samples_of(installed, healthy, seen, labels):
                self._ledger.schedulers.note_islands(sample.cluster, sample.islands)
                self._ledger.samples.keep(sample, "prometheus")
        except BackstopError as error:
            log.warning("Prometheus %s was not read: %s", name, error.message)


def ask(connection: PrometheusConnection, query: str) -> dict[tuple[str, str], float]:
    """The answer to one instant query. Errors: Unavailable."""
    if not connection.url.startswith(("http://", "https://")):
        raise Unavailable(f"a Prometheus is reached by http or https, not by {connection.url}")
    where, given = f"{connection.url.rstrip('/')}/api/v1/query", urllib.parse.urlencode({"query": query}).encode()
    asked = urllib.request.Request(where, data=given, headers=_headers(connection))  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(asked, timeout=connection.timeout.total_seconds()) as answer:  # noqa: S310
            document: Any = json.loads(answer.read(_MOST))
    except urllib.error.HTTPError as error:
        reason = error.read(300).decode(errors="replace")
        raise Unavailable(f"Prometheus refused a query ({error.code}): {reason}") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"Prometheus at {connection.url} did not answer: {error}") from None
    return answers(document, connection.cluster_label, connection.island_label)


def _headers(connection: PrometheusConnection) -> dict[str, str]:
    if connection.token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {Path(connection.token_file).read_text().strip()}"}
    except OSError as error:
        raise Unavailable(f"{connection.token_file} cannot be read: {error.strerror}") from None
