"""A row that makes no sense affects its own cluster only: all other clusters get their answer.

Tools write the ledger's tables by plain SQL, and its constraints check one row at a time. Our models check what the
constraints let pass, and rows that are older than they. Source: docs/adr/0031.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import ValidationError

from activities.ports.by_cluster import ByCluster
from activities.ports.registry import ClustersPort
from models.base import in_one_sentence
from models.errors import BackstopError, NoSuchCluster, Refusal, Unavailable

_Row = TypeVar("_Row")
_T = TypeVar("_T")

SENSELESS = (ValueError, TypeError, OverflowError)
"""Errors that our models raise for invalid rows: pydantic's refusals, invalid JSON, an unknown stage."""


_LONGEST = 300


def why_senseless(error: Exception) -> str:
    """Return the error in a short sentence: pydantic's own would fill a screen."""
    return (in_one_sentence(error) if isinstance(error, ValidationError) else str(error))[:_LONGEST]


def fault_of(cluster: str, what: str, error: Exception) -> str:
    """Say in a sentence whose row it is, which one, and what is wrong with it."""
    return f"cluster {cluster} in the ledger does not make sense: {what}: {why_senseless(error)}"


@contextmanager
def making_sense(cluster: str, what: str) -> Iterator[None]:
    """Raise Refusal if the rows that the block builds from make no sense."""
    try:
        yield
    except SENSELESS as error:
        raise Refusal(fault_of(cluster, what, error)) from None


def build_each(what: str, rows: Iterable[tuple[str, _Row]], build: Callable[[str, _Row], _T]) -> ByCluster[_T]:
    """Build from each cluster's rows; a cluster whose rows make no sense is left out, and named."""
    answer: ByCluster[_T] = ByCluster()
    for cluster, row in rows:
        try:
            answer[cluster] = build(cluster, row)
        except SENSELESS as error:
            answer.senseless[cluster] = fault_of(cluster, what, error)
    return answer


def one_of(answers: ByCluster[_T], cluster: str) -> _T | None:
    """Return the cluster's own answer. Errors: Refusal if its rows make no sense."""
    if cluster in answers.senseless:
        raise Refusal(answers.senseless[cluster])
    return answers.get(cluster)


def answer_for(answers: ByCluster[_T], cluster: str) -> _T:
    """Return the cluster's own answer. Errors: Refusal if it is unknown, or its rows make no sense."""
    answer = one_of(answers, cluster)
    if answer is None:
        raise NoSuchCluster(cluster)
    return answer


def its_own_trouble(error: BackstopError, ledger: ClustersPort) -> None:
    """Raise Unavailable if the ledger answers nobody: the error says nothing of the one cluster then."""
    if isinstance(error, Unavailable):
        ledger.names()


def those_that_do(rows: Iterable[_Row], build: Callable[[_Row], _T]) -> Iterator[_T]:
    """Yield what is built of the rows, without those that make no sense."""
    for row in rows:
        try:
            built = build(row)
        except SENSELESS:
            continue
        yield built
