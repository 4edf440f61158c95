"""Prometheus as a source of health: three queries for all its clusters, whose answers are kept in the ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
from pydantic import Field

from activities.adapters.http import EVERYWHERE, Asked, fetch
from activities.adapters.ledger.facade import Ledger
from activities.adapters.prometheus.queries import (
    TOLERATED_TAINTS,
    Found,
    Queries,
    SeriesRead,
    answers,
    dcgm,
    samples_of,
)
from activities.adapters.source_threads import WAITED, Faults, SourceThreads, sentence
from activities.secret_files import SecretFiles
from models.base import Duration, Model, Name
from models.cluster.island import Island
from models.cluster.sources import PrometheusSource, Sources
from models.errors import Unavailable

_MOST = 16_000_000
"""The most bytes of one answer: ten times those of 10,000 islands."""
_TOLD = 300
"""Characters of a fault that are reported."""
NO_SECRETS = SecretFiles()


class PrometheusConnection(Model):
    """A Prometheus, in the worker's own settings. The default queries are those for the DCGM exporter."""

    url: Name
    token_file: Name | None = None
    """A file with a bearer token; None: no token from a file."""
    token: Annotated[str, Field(pattern=r"^secret:[A-Za-z0-9._-]{1,253}$")] | None = None
    """The secret with the bearer token, if the worker has a folder of secrets; used in place of `token_file`."""
    cluster_label: Name = "cluster"
    island_label: Name = "island"
    ready: str = ""
    """PromQL of ready nodes, by Hostname; `kubernetes`: the nodes on which Kubernetes would place a job."""
    tolerated_taints: str = TOLERATED_TAINTS
    """With `kubernetes`: a regular expression of taint keys that jobs tolerate. Any other taint bars a node."""
    installed: str | None = None
    healthy: str | None = None
    seen: str | None = None
    timeout: Duration = Field(default=timedelta(seconds=10), gt=timedelta(0), le=timedelta(seconds=50))
    """The time limit of all three queries together."""

    @property
    def queries(self) -> Queries:
        default = dcgm(self.cluster_label, self.island_label, self.ready, self.tolerated_taints)
        own = {name: text for name in ("installed", "healthy", "seen") if (text := getattr(self, name)) is not None}
        return default.but(**own)


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
        patience: timedelta = WAITED,
        secrets: SecretFiles = NO_SECRETS,
    ) -> None:
        self._secrets = secrets
        self._ledger = ledger
        self._connections = connections
        self._every = every.total_seconds()
        self._read_at: dict[str, float] = {}
        self._faults = Faults(ledger.now)
        self._threads = SourceThreads(lambda *_: None, patience)  # what is wrong is told of each cluster

    def refresh_health(self, sources: Sources) -> dict[str, str]:
        """Read each Prometheus's answer for its clusters into the ledger; return late faults, by cluster."""
        by_connection = self._group_by_connection(sources)
        now = time.monotonic()
        due = [name for name in by_connection if now - self._read_at.get(name, -self._every) >= self._every]
        for name in due:
            self._read_at[name] = now
        self._threads.read({name: partial(self._look, name, by_connection[name]) for name in due})
        return self._faults.recent_faults()

    def check(self) -> dict[str, str]:
        """Return the fault in each cluster's present answer from its Prometheus; empty: none. Nothing is kept of it."""
        sources = self._ledger.schedulers.all_sources()
        sentences = dict.fromkeys(sources.prometheus, "its Prometheus does not answer")

        def look(name: str, its: Mapping[str, PrometheusSource]) -> None:
            reading = self._query_all(name, its)
            seen = {sample.cluster for sample in reading.samples}
            for cluster in its:
                sentences[cluster] = reading.wrong.get(
                    cluster, "" if cluster in seen else f"the answer of Prometheus has no series for {cluster}"
                )

        def wrong(name: str, text: str) -> None:
            sentences.update(dict.fromkeys(by_connection[name], text))

        by_connection = self._group_by_connection(sources)
        SourceThreads(wrong, timedelta(seconds=25)).read({n: partial(look, n, its) for n, its in by_connection.items()})
        return sentences

    def read_islands(self, cluster: str, source: PrometheusSource) -> tuple[Island, ...]:
        """Return the cluster's islands as Prometheus reports them now. Nothing is kept. Errors: Unavailable."""
        reading = self._query_all(source.connection, {cluster: source})
        if not reading.samples:
            missing = f"no series for {source.cluster or cluster}"
            raise Unavailable(f"Prometheus {source.connection} has {reading.wrong.get(cluster, missing)}")
        return reading.samples[0].islands

    @staticmethod
    def _group_by_connection(sources: Sources) -> dict[str, dict[str, PrometheusSource]]:
        by_connection: dict[str, dict[str, PrometheusSource]] = {}
        for cluster, source in sources.prometheus.items():
            by_connection.setdefault(source.connection, {})[cluster] = source
        return by_connection

    def _look(self, name: str, sources: Mapping[str, PrometheusSource]) -> None:
        """Keep the answer; while there is none, the last samples stay and visibly grow old."""
        try:
            reading = self._query_all(name, sources)
        except Exception as error:
            for cluster in sources:
                self._faults.note_fault("health", cluster, f"Prometheus {name}: {sentence(error)}")
            raise
        for cluster, text in reading.wrong.items():
            self._faults.note_fault("health", cluster, f"Prometheus {name} has {text}")
        for sample in reading.samples:
            try:
                self._ledger.schedulers.note_islands(sample.cluster, sample.islands)
                self._ledger.samples.keep(sample, "prometheus")
            except Exception as error:  # one sample that the ledger refuses must not cost the others
                self._faults.note_fault("health", sample.cluster, f"Prometheus {name}: {sentence(error)}")

    def _query_all(self, name: str, sources: Mapping[str, PrometheusSource]) -> Found:
        """Ask the three queries. Errors: Unavailable."""
        connection = self._connections.get(name)
        if connection is None:
            raise Unavailable(
                f"this worker has no Prometheus {name!r}: add it to the file that BACKSTOP_PROMETHEUS names"
            )
        labels = {source.cluster or cluster: cluster for cluster, source in sources.items()}
        ends = time.monotonic() + connection.timeout.total_seconds()
        queries = connection.queries
        installed, healthy, seen = (
            ask(connection, query, ends, self._secrets) for query in (queries.installed, queries.healthy, queries.seen)
        )
        return samples_of(installed, healthy, seen, labels, self._ledger.now())


def ask(
    connection: PrometheusConnection, query: str, ends: float | None = None, secrets: SecretFiles = NO_SECRETS
) -> SeriesRead:
    """Return the answer to one instant query. `ends`: its deadline, by time.monotonic(). Errors: Unavailable."""
    return answers(document(connection, query, ends, secrets), connection.cluster_label, connection.island_label)


def document(
    connection: PrometheusConnection, query: str, ends: float | None = None, secrets: SecretFiles = NO_SECRETS
) -> Any:
    """Return the answer as it came, JSON. Arguments and errors: as `ask`."""
    if not connection.url.startswith(("http://", "https://")):
        raise Unavailable(f"the URL of a Prometheus must begin with http:// or https://, not {connection.url}")
    where = f"{connection.url.rstrip('/')}/api/v1/query"
    seconds = connection.timeout.total_seconds() if ends is None else max(0.01, ends - time.monotonic())
    headers = _headers(connection, secrets)
    try:
        asked = Asked("POST", httpx.URL(where), {"query": query}, headers, seconds=seconds, most=_MOST, form=True)
        answer = fetch(asked, EVERYWHERE)
    except (TimeoutError, httpx.TimeoutException):
        raise Unavailable(f"{where} did not finish its answer in time") from None
    except Unavailable as error:
        raise Unavailable(f"{where} did not answer: {error.message}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"{where} did not answer: {_cause(error)}") from None
    if not answer.is_success:
        reason = " ".join(answer.text[:_TOLD].split()) or "and did not say why"
        raise Unavailable(f"{where} refused a query ({answer.status}): {reason}")
    return answer.document(where)


def _cause(error: BaseException) -> str:
    """Name the first error of a chain: the client's own says only that no connection was made."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return f"{type(error).__name__} {error}"[:_TOLD]


def _headers(connection: PrometheusConnection, secrets: SecretFiles) -> dict[str, str]:
    """Return the request's headers. Errors: Unavailable, also for a token that no header can hold: it is not sent."""
    name = connection.token or connection.token_file
    if name is None:
        return {}
    try:
        token = (secrets.resolve(name) if connection.token else Path(name).read_text()).strip()
    except OSError as error:
        raise Unavailable(f"{name} cannot be read: {error.strerror}") from None
    if not (token.isascii() and token.isprintable()):
        raise Unavailable(f"{name} has a character that an HTTP header cannot hold")
    return {"Authorization": f"Bearer {token}"}
