"""`backstop migrate`: the ledger's schema is up to date."""

from __future__ import annotations

from activities.adapters.ledger.facade import upgrade
from workers.main import run_and_exit
from workers.private import keep_private
from workers.settings import load_settings


async def _main() -> None:
    settings = load_settings()
    keep_private(settings.home)
    upgrade(settings.ledger_url)
    print("ledger: up to date", flush=True)


if __name__ == "__main__":
    run_and_exit(_main)
