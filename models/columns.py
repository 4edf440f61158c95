"""Column types of the ledger's tables: times and names; and an index of impossible values."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, Index, Text, text
from sqlalchemy.types import TIMESTAMP, TypeDecorator, TypeEngine

from models.base import MOST_GPUS


class UtcTime(TypeDecorator[datetime]):
    """An aware instant in UTC. SQLite keeps it as text of one width, whose order is the order of time."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        instant = value.astimezone(UTC)
        if dialect.name == "postgresql":
            return instant
        return f"{instant.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        instant = value if isinstance(value, datetime) else _instant(value)
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_AFTER_ALL = "9999-12-31T23:59:59.999999Z"


@lru_cache(maxsize=20_000)
def _instant(text: str) -> datetime:
    """Parse an instant; a text that is no time becomes the first or the last of all times, whichever it sorts beside.

    So a row with it fails no answer, and a date far ahead or long ago has no effect anyway.
    """
    try:
        instant = datetime.fromisoformat(text)
        return instant if instant.tzinfo in (None, UTC) else instant.astimezone(UTC)
    except (ValueError, OverflowError, TypeError):
        return LAST if str(text) > _AFTER_ALL else FIRST


class NameText(TypeDecorator[str]):
    """A name, compared by code point on every database."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return Text(collation="C") if dialect.name == "postgresql" else Text()


def beyond_index(name: str, column: str) -> Index:
    """Return an index of samples with more GPUs than possible: rows older than the constraints, for `doctor`."""
    those = text(f"{column} > {MOST_GPUS}")
    return Index(name, "cluster", postgresql_where=those, sqlite_where=those)
