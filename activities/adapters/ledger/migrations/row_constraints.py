"""What a row may not say, whoever writes it: sizes, names, times and settings that no model takes.

PostgreSQL has them as CHECK constraints, SQLite as triggers that refuse the same in the same words. Both judge what is
written; a row that an earlier build took stays, and `doctor` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

MOST_GPUS = 10_000_000
_LONGEST_NAME = 200
_MOST_CLASSES = 8
_DIGITS = "[0-9]" * 8


def _count(column: str, _dialect: str) -> str:
    return f"{column} <= {MOST_GPUS}"


def _size(column: str, _dialect: str) -> str:
    return f"{column} BETWEEN 1 AND {MOST_GPUS}"


def _name(column: str, dialect: str) -> str:
    if dialect == "postgresql":
        return rf"char_length({column}) BETWEEN 1 AND {_LONGEST_NAME} AND {column} !~ '[\u0001-\u001f\u007f]'"
    printable = f"{column} NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'"
    return f"typeof({column}) IN ('text', 'null') AND length({column}) BETWEEN 1 AND {_LONGEST_NAME} AND {printable}"


def _island(column: str, dialect: str) -> str:
    position = "strpos" if dialect == "postgresql" else "instr"
    return f"{_name(column, dialect)} AND {position}({column}, ',') = 0"


def _list(column: str, dialect: str) -> str:
    if dialect == "postgresql":
        return f"{column} !~ '(^,|,,|,$)'"
    return f"{column} NOT GLOB ',*' AND {column} NOT GLOB '*,' AND {column} NOT GLOB '*,,*'"


def _blocks(column: str, dialect: str) -> str:
    if dialect == "postgresql":
        return f"{column} ~ '^([1-9][0-9]{{0,6}}(,[1-9][0-9]{{0,6}})*)?$'"
    whole = f"{column} NOT GLOB '*[^0-9,]*' AND {column} NOT GLOB '*,' AND {column} NOT GLOB '*{_DIGITS}*'"
    return f"{whole} AND (',' || {column}) NOT GLOB '*,[,0]*'"


def _time(column: str, dialect: str) -> str:
    if dialect == "postgresql":
        return f"{column} BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'"
    # A day that there is ('now' would be a time to SQLite, a number a count of days, and 30 February early March).
    day = f"strftime('%Y-%m-%d', substr({column}, 1, 10), '+0 days') IS substr({column}, 1, 10)"
    time = f"julianday(substr({column}, 1, 19)) IS NOT NULL AND substr({column}, 20) NOT GLOB '*[^0-9.Z:+-]*'"
    return f"({column} IS NULL OR ({day} AND {time} AND length({column}) BETWEEN 16 AND 32))"


def _reason(column: str, dialect: str) -> str:
    length = "char_length" if dialect == "postgresql" else "length"
    return f"{length}({column}) BETWEEN 1 AND 500"


def _settings(column: str, dialect: str) -> str:
    if dialect == "postgresql":
        return f"jsonb_typeof({column}::jsonb) = 'object'"
    return f"({column} IS NULL OR CASE WHEN json_valid({column}) THEN json_type({column}) = 'object' ELSE 0 END)"


def _classes(column: str, dialect: str) -> str:
    """Names between commas, each of which `_island` takes, and eight of them at most; none: an empty text."""
    if dialect == "postgresql":
        longest = rf"{column} !~ '[^,]{{{_LONGEST_NAME + 1}}}|[\u0001-\u001f\u007f]'"
    else:
        printable = f"{column} NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'"
        too_long = "[^,]" * (_LONGEST_NAME + 1)
        longest = f"typeof({column}) IN ('text', 'null') AND {column} NOT GLOB '*{too_long}*' AND {printable}"
    commas = f"length({column}) - length(replace({column}, ',', ''))"
    return f"{_list(column, dialect)} AND {longest} AND {commas} < {_MOST_CLASSES}"


def _notify(column: str, _dialect: str) -> str:
    return f"{column} IN ('each', 'digest', 'breach-only')"


Rules = dict[str, dict[str, Callable[[str, str], str]]]
"""Builders of constraints, by table and column."""

RULES: Rules = {
    "fleet": {"policy": _settings},
    "clusters": {
        "name": _name,
        "gpus_per_node": _size,
        "policy": _settings,
        "source": _settings,
        "health_source": _settings,
    },
    "islands": {"name": _island, "total_gpus": _count},
    "quotas": {
        "team": _name,
        "gpus": _count,
        "minimum": _count,
        "blocks": _blocks,
        "islands": _list,
        "classes": _classes,
    },
    "teams": {"notify": _notify},
    "health_samples": {"total_gpus": _count, "at": _time},
    "usage_samples": {"team": _name, "scheduled_gpus": _count, "pending_gpus": _count, "at": _time},
    "jobs": {
        "job": _name,
        "team": _name,
        "island": _name,
        "gpus": _count,
        "started": _time,
        "ended": _time,
        "job_class": _island,
    },
    "windows": {"reason": _reason, "gpus": _count, "islands": _list, "starts": _time, "ends": _time},
    "bringups": {"cluster": _name, "opened_at": _time, "ended_at": _time, "stage_at": _time, "board": _settings},
    "owed": {"team": _name, "wanted_gpus": _count, "granted_gpus": _count, "until": _time},
    "access_files": {"document": _settings, "imported_at": _time, "in_force_at": _time},
    "access_tokens": {
        "name": _name,
        "scope": _settings,
        **dict.fromkeys(("made_at", "expires_at", "revoked_at"), _time),
    },
    "ended_sessions": {"ended_at": _time},
    "awaited_merges": {"document": _settings},
    "waiting_commands": {"document": _settings, **dict.fromkeys(("given_at", "taken_at", "ended_at"), _time)},
    "emergencies": dict.fromkeys(("given_at", "seen_at"), _time),
}


def statements(dialect: str, tables: Collection[str]) -> Iterator[str]:
    """The DDL of this dialect for these tables."""
    for table, rules in RULES.items():
        if table not in tables:
            continue
        for column, rule in rules.items():
            name = f"{table}_{column}_sense"
            if dialect == "postgresql":
                condition = rule(column, dialect)
                yield f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({condition}) NOT VALID"
            else:
                yield from _triggers(name, table, column, rule(f"NEW.{column}", dialect))


def _triggers(name: str, table: str, column: str, condition: str) -> Iterator[str]:
    for verb, event in (("inserted", "INSERT"), ("updated", f"UPDATE OF {column}")):
        yield f"""
            CREATE TRIGGER {name}_{verb} BEFORE {event} ON {table} WHEN NOT ({condition})
            BEGIN SELECT RAISE(ABORT, 'CHECK constraint failed: {name}'); END
        """
