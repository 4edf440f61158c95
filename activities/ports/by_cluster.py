"""The answers of one call for many clusters; invalid rows of one cluster do not hide the others' answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_T = TypeVar("_T")


class ByCluster(dict[str, _T]):
    """An answer for each cluster that has one. One senseless row must not cost the others their answer.

    `senseless`: why a cluster that should have an answer is left out, in a sentence that names it.
    """

    def __init__(self, answers: Mapping[str, _T] | None = None) -> None:
        super().__init__(answers or {})
        self.senseless: dict[str, str] = {}
