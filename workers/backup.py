"""`backstop backup DIR`: copies the state of `backstop up` while it runs. `backstop up` can go on from the copy.

Temporal's database first, the ledger's after it, each as of one moment. So the ledger is never the older one: effects
that Temporal has seen are in it, and those that it has beyond are asked for again under the same fence and answered
with their receipts.

The books of keys last of all: they only grow, so that they have every key that signed or encrypted the earlier copies.
Private keys are not copied: a reader of the backup can read everything, and command nothing
(docs/adr/0073-what-a-backup-holds.md).
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from client.front_key_files import key_book_file
from client.payload_keys import keys_file
from client.private_files import write_private
from models.errors import BadInput, Refusal, Unavailable
from workers.main import run_and_exit
from workers.private_files import keep_private
from workers.settings import load_settings

_FILE = "sqlite:///"
_SECONDS = 30
KEY_BOOK, PAYLOAD_KEYS = "keys.json", "payload.json"
NO_PRIVATE_KEY = (
    "The copy does not contain the front's private key: after a restore, run `backstop keys new --lost`, so that the "
    "front signs again. Earlier approvals stay valid."
)


def back_up(home: Path, ledger_url: str, to: Path, keys: Mapping[str, Path]) -> list[Path]:
    """Copy everything to `to`, or nothing; return the files.

    `keys`: the paths of the book of public keys and the payload keys, by their names in a home; some may not exist.
    Errors:
    BadInput if something is there already; Refusal if this home has no embedded state, or its ledger is a server's;
    Unavailable if a database cannot be read.
    """
    if not ledger_url.startswith(_FILE):
        raise Refusal("the ledger is on a PostgreSQL server: back it up with pg_dump (docs/operations.md)")
    ledger, temporal = Path(ledger_url.removeprefix(_FILE)), home / "temporal" / "temporal.db"
    for database in (temporal, ledger):
        if not database.is_file():
            raise Refusal(f"there is no {database}: this command copies only the files of `backstop up`")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise BadInput(f"DIR {str(to)!r} already exists: name a new folder")
    to.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))  # a new folder of our own
    try:
        (part / "temporal").mkdir()
        _copy(temporal, part / "temporal" / temporal.name)
        _copy(ledger, part / "ledger.db")
        if (home / "notices.jsonl").is_file():
            shutil.copy2(home / "notices.jsonl", part)
        if (book := home / "notices.jsonl.book").is_file():  # which notice went where: without it some would go again
            _copy(book, part / book.name)
        for name, path in keys.items():
            if path.exists():
                write_private(part / "keys" / name, _content(path))
        part.replace(to)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return sorted(path for path in to.rglob("*") if path.is_file())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{path} cannot be copied: {error.strerror}") from None


def _copy(database: Path, to: Path) -> None:
    """Copy the database as of one moment, even if others write meanwhile."""
    try:
        with (
            closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=_SECONDS)) as source,
            closing(sqlite3.connect(to)) as copy,
        ):
            source.backup(copy)
            (well,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise Unavailable(f"{database} cannot be copied: {error}") from None
    if well != "ok":
        raise Unavailable(f"{database} is damaged: {well}")


async def _main() -> None:
    settings = load_settings()
    keep_private(settings.home)
    keys = {KEY_BOOK: key_book_file(), PAYLOAD_KEYS: keys_file()}
    copied = back_up(settings.home, settings.ledger_url, Path(sys.argv[1]), keys)
    for path in copied:
        print(f"{path.stat().st_size:>12,}  {path}")
    names = {path.name for path in copied}
    if PAYLOAD_KEYS in names:
        print("The copy contains the payload keys: whoever has the copy can read what Temporal stores.")
    if KEY_BOOK in names:
        print(NO_PRIVATE_KEY)


if __name__ == "__main__":
    run_and_exit(_main)
