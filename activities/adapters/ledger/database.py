"""The ledger's database: its address, its transactions, and its errors in our words.

A SQLite write locks the whole database at its start (BEGIN IMMEDIATE), so nothing that was read can have changed
before it is written; readers go on beside it (WAL). A writer that must wait sleeps and tries again, ever longer, so
the threads of one process queue for it among themselves. PostgreSQL writes lock the cluster's row. Readers see one
moment on both.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg import DataError, adapters
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from sqlalchemy import event, exc
from sqlmodel import Session, SQLModel

from activities.adapters.ledger.migrations import schema
from activities.clock import Clock, utc_now
from models.columns import FIRST, LAST
from models.errors import BadInput, Barred, Refusal, Unavailable

PATIENCE = timedelta(seconds=30)
"""How long a write waits for another write before the ledger counts as unavailable."""

NOT_MIGRATED = "the ledger has no tables, or older ones: run `backstop migrate`"
TOO_OLD = (
    "the ledger has schema {revision}, which is too old for this build: upgrade the ledger first with the build "
    "of commit 092a131"
    ' (docs/operations.md, "A ledger of an earlier build")'
)
_AWAY = {"42P01", "42703", "3F000", "42809", "42883"}
"""PostgreSQL: no such table, column, schema or function; without its column, `quotas.mode` is the aggregate mode()."""
_NO_RIGHT = "42501"
_MOMENT = "moment"
"""The key in a session's `info` of what was read in the moment that the session shares."""
_T = TypeVar("_T")
LOCKED = "the ledger is locked by another writer"
_MIGRATION_LOCK = 0x6261636B73746F70  # "backstop" in ASCII


def database_url(url: str) -> sa.URL:
    """Return the address with our driver. Errors: BadInput, without a password, unless PostgreSQL or a SQLite file."""
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        raise BadInput("the ledger's URL is not a database URL (for example sqlite:///ledger.db)") from None
    if parsed.drivername in {"postgres", "postgresql", "postgresql+psycopg"}:
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite"}:
        raise BadInput(f"the ledger's URL names {parsed.drivername!r}: it must be sqlite or postgresql")
    if not parsed.database or parsed.database == ":memory:":
        raise BadInput("the ledger's URL names no file: a database in memory would be lost with its process")
    return parsed


def newest_revision() -> str:
    """Return the revision of the schema that this Backstop needs."""
    return str(ScriptDirectory.from_config(_migrations()).get_current_head())


def _migrations() -> Config:
    config = Config()
    folder = Path(__file__).with_name("migrations")
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def upgrade(url: str) -> None:
    """Bring the schema to the newest revision. Safe to run again, and from several places at once.

    Errors: Refusal for a ledger of a newer Backstop; BadInput for one of a build too old to be brought up to date.
    """
    config = _migrations()
    engine = make_engine(url, PATIENCE)
    try:
        with translate_errors(), engine.execution_options(backstop_writes=True).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            config.attributes["connection"] = connection
            revision = _revision(connection)
            if revision is None or revision in schema.EARLIER:
                schema.make(connection, is_earlier=revision is not None)
                command.stamp(config, "head", purge=True)
            elif revision < schema.EARLIER[0]:
                raise BadInput(TOO_OLD.format(revision=revision))
            else:
                command.upgrade(config, "head")
    except CommandError:
        raise Refusal(
            "the ledger has the schema of a newer Backstop: upgrade this Backstop before you use the ledger with it"
        ) from None
    finally:
        engine.dispose()


def _revision(connection: sa.Connection) -> str | None:
    """Return the schema's revision; None for a database that is no ledger yet."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return revision


def make_engine(url: str, patience: timedelta) -> sa.Engine:
    """Return an engine whose connections are ready for threads. It does not connect yet."""
    parsed = database_url(url)
    if parsed.drivername == "postgresql+psycopg":
        # Milliseconds, by SET, so that options in the URL stay as they are. In a zone east of Greenwich the last
        # hours of the year 9999 ("until further notice") could be written and never be read.
        engine = sa.create_engine(parsed, pool_pre_ping=True, pool_size=10, max_overflow=20, hide_parameters=True)
        _on_connect(engine, [f"SET lock_timeout = {int(patience.total_seconds() * 1000)}", "SET TIME ZONE 'UTC'"])
        event.listen(engine, "connect", _reads_endless_times)
        return engine
    waits = {"timeout": patience.total_seconds(), "check_same_thread": False, "isolation_level": None}
    engine = sa.create_engine(parsed, pool_size=10, max_overflow=20, connect_args=waits, hide_parameters=True)
    # synchronous stays FULL: a receipt that was handed out must survive a power cut. LIKE would ignore case: rollouts F
    # and f would read each other's entries, whose keys begin alike.
    _on_connect(engine, ["PRAGMA foreign_keys = ON", "PRAGMA journal_mode = WAL", "PRAGMA case_sensitive_like = ON"])

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # The driver would begin a write only at its first UPDATE, after what it read has aged.
        if connection.get_execution_options().get("backstop_writes", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:  # it waits for nobody, so that it cannot fail, and SQLAlchemy's own way takes ten times as long
            connection.connection.cursor().execute("BEGIN")

    return engine


def _on_connect(engine: sa.Engine, statements: Sequence[str]) -> None:
    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        if hasattr(connection, "autocommit") and not connection.autocommit:
            connection.commit()  # psycopg opened a transaction for the SET


class _EndlessTime(Loader):
    """Reads times that no Python datetime can be ('infinity', a year before Christ) as the last or the first time.

    With psycopg's own loader, one such row would fail the whole answer that it is in.
    """

    def __init__(self, oid: int, context: Any = None) -> None:
        super().__init__(oid, context)
        usual = adapters.get_loader(oid, Format.TEXT)
        assert usual is not None
        self._usual = usual(oid, context)

    def load(self, data: Buffer) -> datetime:
        try:
            instant: datetime = self._usual.load(data)
            return instant
        except DataError:
            text = bytes(data)
            return FIRST if text.startswith(b"-") or text.endswith(b"BC") else LAST


def _reads_endless_times(connection: Any, _record: Any) -> None:
    connection.adapters.register_loader("timestamptz", _EndlessTime)


class _Turn:
    """Lets one thread in at a time, in about the order of asking. Errors: Unavailable after `patience`."""

    def __init__(self, patience: timedelta) -> None:
        self._lock = threading.Lock()
        self._seconds = patience.total_seconds()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._seconds):
            raise Unavailable(LOCKED)

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


class _Shared(threading.local):
    """The session that a thread's reads share; None: each opens its own."""

    session: Session | None = None


class Database:
    """Transactions on the ledger. Thread-safe; sessions are not handed between threads."""

    def __init__(self, url: str, now: Clock = utc_now, patience: timedelta = PATIENCE) -> None:
        self.now = now
        self._engine = make_engine(url, patience)
        self._writes = self._engine.execution_options(backstop_writes=True)
        self._reads = self._engine
        self._shared = _Shared()
        sqlite = self._engine.dialect.name == "sqlite"
        self._turn = _Turn(patience) if sqlite else nullcontext()
        if self._engine.dialect.name == "postgresql":
            self._reads = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session in which all reads see one moment; within `one_moment`, take the thread's own."""
        shared = self._shared.session
        if shared is None:
            with translate_errors(), Session(self._reads) as session:
                yield session
            return
        try:
            with translate_errors():
                yield shared
        except BaseException:
            self.end_moment()  # PostgreSQL answers nothing more in a transaction that failed
            raise

    @contextmanager
    def one_moment(self) -> Iterator[Session]:
        """Let this thread's reads within see one moment, in one transaction, until it writes or `end_moment`.

        Reads within keep by `once_in_moment` what others ask for again.
        """
        with self.reading() as session:
            session.info.setdefault(_MOMENT, {})
            self._shared.session = session
            try:
                yield session
            finally:
                self._shared.session = None

    def end_moment(self) -> None:
        """Let this thread's later reads each see its own moment, and give the connection back."""
        shared, self._shared.session = self._shared.session, None
        if shared is not None:
            shared.close()

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """Open a session that writes all, or nothing if an error leaves it."""
        self.end_moment()  # what is read after a write is later than it
        with self._turn, translate_errors(), Session(self._writes) as session, session.begin():
            yield session

    def check_schema(self) -> None:
        """Check that every table is there with every column. Errors: Unavailable; Barred for an unreadable one."""
        with self.reading() as session:
            for table in SQLModel.metadata.sorted_tables:
                session.connection().execute(sa.select(*table.columns).limit(0))

    def close(self) -> None:
        self._engine.dispose()


class LedgerPart:
    """A part of the ledger: it implements a port on the database that all parts share."""

    def __init__(self, database: Database) -> None:
        self._database = database


def once_in_moment(session: Session, key: Hashable, read: Callable[[], _T]) -> _T:
    """Return what `read` answers; within one moment the first answer under this key, which nobody may change."""
    moment: dict[Hashable, Any] | None = session.info.get(_MOMENT)
    if moment is None:
        return read()
    if key not in moment:
        moment[key] = read()
    answer: _T = moment[key]
    return answer


def one_at_a_time(session: Session, what: str) -> None:
    """Keep everybody else from doing `what` until this transaction ends. SQLite has one writer anyhow."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(f"backstop {what}"))))


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the database's errors as ours, without SQL, address and password; others are our own bugs."""
    try:
        yield
    except exc.TimeoutError:
        raise Unavailable("the ledger is busy, and no connection came free in time: try again") from None
    except exc.DBAPIError as error:
        ours = _in_our_words(error)
        if ours is None:
            raise
        raise ours from None


_GRANT = "grant the worker's role its rights (docs/set-up.md, Two roles on PostgreSQL)"
_RESTORE = "restore it from a backup; Backstop then tries again by itself"
_NO_SUCH = re.compile(r"^(no such table|no such column|table \w+ has no column)")
_RESERVED = "reserved: "  # how the triggers' reasons begin
_QUOTED_REASON = re.compile(r"(?:JSON path error near|bad JSON path:) '(reserved: .*)'$", re.DOTALL)


def _in_our_words(error: exc.DBAPIError) -> Exception | None:
    reason = _reason_of_a_trigger(error.orig)
    if reason is not None:
        return Refusal(reason)
    sqlstate: str | None = getattr(error.orig, "sqlstate", None)
    text = str(error.orig)
    if sqlstate in _AWAY or _NO_SUCH.search(text):
        return Unavailable(NOT_MIGRATED)  # a migration, or a backup that is brought back: it may be over in seconds
    if sqlstate == _NO_RIGHT:
        return Barred(f"the ledger's database denies Backstop access ({_first_line(error.orig)}): {_GRANT}")
    if isinstance(error, exc.DataError | exc.IntegrityError):
        return BadInput(f"the ledger refuses a value ({_broken_rule(error.orig)})")
    if sqlstate is None and "locked" in text:
        return Unavailable(LOCKED)
    lost = isinstance(error, exc.OperationalError | exc.InterfaceError) or error.connection_invalidated
    if lost or sqlstate == "25006":  # read-only: a standby took over
        return Unavailable(f"the ledger's database did not answer ({type(error.orig).__name__})")
    # SQLite's "malformed" and "not a database" are of no kind of their own; PostgreSQL's damage is an internal error.
    if isinstance(error, exc.InternalError) or type(error) is exc.DatabaseError:
        return Unavailable(f"the ledger's database is damaged ({_first_line(error.orig)}): {_RESTORE}")
    return None


def _reason_of_a_trigger(cause: BaseException | None) -> str | None:
    diagnosis = getattr(cause, "diag", None)
    if diagnosis is not None:
        refused = diagnosis.constraint_name == "reservation"
        return str(diagnosis.message_primary).removeprefix(_RESERVED) if refused else None
    text = str(cause)
    if quoted := _QUOTED_REASON.search(text):
        text = quoted[1].replace("''", "'")
    return text.removeprefix(_RESERVED) if text.startswith(_RESERVED) else None


def _first_line(cause: BaseException | None) -> str:
    return str(cause).partition("\n")[0]


def _broken_rule(cause: BaseException | None) -> str:
    """Name the rule as the schema does; never the values."""
    diagnosis = getattr(cause, "diag", None)
    if diagnosis is not None:
        return str(diagnosis.constraint_name or type(cause).__name__)
    return str(cause)  # SQLite names the rule and no values
