"""`backstop migrate`: brings the ledger's schema up to date. With `--from`, it copies another ledger into it too."""

from __future__ import annotations

import sys
from pathlib import Path

from activities.adapters.ledger.database import database_url, upgrade
from activities.adapters.ledger.move import move
from models.errors import BadInput
from workers.main import run_and_exit
from workers.private_files import keep_private
from workers.settings import load_settings


def source_file(place: str) -> Path:
    """Return the ledger's file in a home of `backstop up`, or at a URL. Errors: BadInput, without a password."""
    if "://" not in place:
        return Path(place) / "ledger.db" if Path(place).is_dir() else Path(place)
    url = database_url(place)
    if url.drivername == "postgresql+psycopg":
        raise BadInput("--from takes a ledger in a file: copy a ledger on PostgreSQL with pg_dump")
    return Path(str(url.database))


async def _main() -> None:
    settings = load_settings()
    keep_private(settings.home)
    if len(sys.argv) > 1:
        others = move(
            source_file(sys.argv[1]), settings.ledger_url, lambda t, rows: print(f"{rows:>12,}  {t}", flush=True)
        )
        for table in others:
            print(f"{'not copied':>12}  {table}: not a table of Backstop")
        print("ledger: copied in full, read back and compared", flush=True)
        return
    upgrade(settings.ledger_url)
    print("ledger: up to date", flush=True)


if __name__ == "__main__":
    run_and_exit(_main)
