"""`backstop up`, `worker`, `serve`, `migrate`, `backup` and `demo`: programs of their own, in `workers`.

This process becomes the program (exec), so that signals, exit code and standard streams are the program's own, and a
kill -9 of the command kills the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, NoReturn

import typer

from backstop.program import program
from cli.lazy import command
from cli.options import SET_UP, arg, flag, number, opt
from models.errors import Unavailable

Home = Annotated[str, opt("DIR", "The state folder. Default: BACKSTOP_HOME, else ~/.local/state/backstop.")]
Trace = Annotated[bool, flag("--trace", "Print each OpenTelemetry span when it ends.")]
Port = Annotated[str, opt("PORT", "Temporal's port; 0 picks a free one.")]
UiPort = Annotated[str, opt("PORT", "The port of Temporal's UI; 0 picks a free one.")]


@command(SET_UP, "backstop up", "backstop up --home ./state --port 0 --ui-port 0")
def up(home: Home = "", port: Port = "", ui_port: UiPort = "", trace: Trace = False) -> None:
    """Run all of Backstop on this machine until Ctrl-C: Temporal with its UI, the ledger, a worker
    and a front.

    The next `backstop up` continues where this one stopped. If TEMPORAL_ADDRESS or a profile of Temporal's own
    command line names a server, Backstop uses that server and starts none.
    """
    settings = _settings(home, trace)
    for name, option, text in (("BACKSTOP_PORT", "--port", port), ("BACKSTOP_UI_PORT", "--ui-port", ui_port)):
        if text:
            settings[name] = f"{number(option, text, 0, 65535):.0f}"
    become("workers.up", (), settings)


@command(SET_UP, "backstop worker", "TEMPORAL_ADDRESS=temporal:7233 backstop worker")
def worker(home: Home = "", trace: Trace = False) -> None:
    """Run a worker for the configured Temporal, until Ctrl-C."""
    become("workers.main", (), _settings(home, trace))


@command(SET_UP, "backstop serve", "backstop serve --listen 0.0.0.0:8420 --tls-cert tls.crt --tls-key tls.key")
def serve(
    listen: Annotated[str, opt("HOST:PORT", "Listen on TCP too; an address other than 127.0.0.1 needs TLS.")] = "",
    tls_cert: Annotated[str, opt("FILE", "The TLS certificate, in PEM.")] = "",
    tls_key: Annotated[str, opt("FILE", "The certificate's private key, in PEM.")] = "",
    home: Home = "",
    trace: Trace = False,
) -> None:
    """Run a front, the HTTP API that checks who calls, until Ctrl-C.

    The front listens on a local socket (BACKSTOP_SOCKET, else front.sock in the state folder), where the operating
    system identifies the caller; over TCP, callers send tokens. `backstop up` starts a front itself.
    """
    options = (("--listen", listen), ("--tls-cert", tls_cert), ("--tls-key", tls_key))
    words = [word for option, value in options if value for word in (option, value)]
    become("web.serve", words, _settings(home, trace))


@command(
    SET_UP,
    "BACKSTOP_LEDGER_URL=postgresql://ledger/backstop backstop migrate",
    "BACKSTOP_LEDGER_URL=postgresql://ledger/backstop backstop migrate --from ./state",
)
def migrate(
    source: Annotated[
        str, opt("DIR|URL", "The ledger to copy: a state folder, or the URL of a SQLite file.", "--from")
    ] = "",
    home: Home = "",
) -> None:
    """Bring the ledger's schema up to date, or copy a whole ledger to PostgreSQL.

    --from copies another ledger, which no process may have open, into the empty database that BACKSTOP_LEDGER_URL
    names. It copies in one transaction and compares what arrived.
    """
    become("workers.migrate", (source,) if source else (), _settings(home, trace=False))


@command(SET_UP, "backstop backup ../backups/2026-11-23")
def backup(
    folder: Annotated[str, arg("DIR", "A new folder for the copy.", show_default=False)], home: Home = ""
) -> None:
    """Copy what `backstop up` keeps, while it runs: Temporal's database, the ledger, notices, public keys and
    the keys that decrypt histories.

    `backstop up --home DIR` continues from the copy. The copy has no private key to sign with: `BACKSTOP_HOME=DIR
    backstop keys new --lost` makes one.
    """
    become("workers.backup", (os.path.abspath(folder),), _settings(home, trace=False))


@command(SET_UP, "backstop demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(context: typer.Context, trace: Trace = False) -> None:
    """Show a whole rollout in about a minute: failure, rollback, recovery, retry, audit."""
    become("workers.demo", context.args, _settings("", trace))


def _settings(home: str, trace: bool) -> dict[str, str]:
    settings = {"BACKSTOP_HOME": os.path.abspath(home)} if home else {}
    return {**settings, "BACKSTOP_TRACE": "console"} if trace else settings


def become(module: str, arguments: Sequence[str], settings: Mapping[str, str]) -> NoReturn:
    """Replace this process with the module's program."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [*program(module), *arguments], {**os.environ, **settings})  # noqa: S606
    except OSError as error:
        raise Unavailable(f"{sys.executable} cannot be started: {error.strerror}") from None
