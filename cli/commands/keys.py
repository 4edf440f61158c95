"""`backstop keys`: the key that a front signs with, and the book of public keys that workers read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.payload_keys import payload_group
from cli.list_options import Listing, listed
from cli.options import SET_UP, arg, examples, flag, opt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from cli.json_answers_keys import KeyLine
    from models.access.key_book import KeyBook
    from models.access.signing import PublicKey

RevokedSince = Annotated[
    str,
    opt(
        "TIME",
        "From this time on the key's signatures are void. Default: now, so earlier signatures stay valid.",
        "--since",
    ),
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys that sign tickets and encrypt what Temporal keeps.")
    group.command("new", epilog=examples("backstop keys new", "backstop keys new --lost"))(new)
    group.command("rotate", epilog=examples("backstop keys rotate"))(rotate)
    group.command("revoke", epilog=examples("backstop keys revoke 20261123-1a2b3c4d --since 2026-11-22T09:00Z"))(revoke)
    group.command("show", epilog=examples("backstop keys show"))(show_)
    group.add_typer(payload_group(), name="payload")
    app.add_typer(group, name="keys", rich_help_panel=SET_UP)


def new(
    lost: Annotated[
        bool, flag("--lost", "Also declare the earlier private key lost: workers refuse what it signs from now on.")
    ] = False,
) -> None:
    """Make the key that a front signs with. The private half stays here; workers read the public half from the
    book of keys (keys/keys.json).

    A worker whose BACKSTOP_KEYS names the book refuses unsigned commands. If BACKSTOP_KEYS is not set and the book is
    in the worker's state folder, the worker refuses them once an access file (who may do what, docs/access.md) is in
    force. In a new state folder `backstop up` makes the key itself; in a restored backup, give --lost.
    """
    from client.front_key_files import new_key, replace_lost_key

    now = datetime.now(UTC)
    _show_new_key(replace_lost_key(now) if lost else new_key(now))


def rotate() -> None:
    """Replace the front's key. What the earlier key has signed stays valid.

    Workers that read this book of keys take the new key within seconds; copy the book to all other workers at once:
    until then they refuse what a front signs with the new key. What the earlier key signs is accepted for ten more
    minutes, for a front that still has it.
    """
    from cli.output import show
    from client.front_key_files import rotate_key
    from views.words import line

    _show_new_key(rotate_key(datetime.now(UTC)))
    end = "ten minutes from now, workers refuse what the earlier key signs. To replace the new key, rotate again."
    show(line(f"It cannot be undone: {end}"))


def revoke(key_id: Annotated[str, arg("KEY", "The key, as `keys show` names it.")], since: RevokedSince = "") -> None:
    """Refuse everything that a stolen key has signed since a time.

    Workers that read this book of keys refuse it within seconds; copy the book to all other workers. This cannot be
    undone.
    """
    from cli.output import show
    from cli.time_options import moment_of
    from client.front_key_files import key_book_file, revoke_key
    from views.words import line

    now = datetime.now(UTC)
    when = moment_of("--since", since, now) if since else now
    revoke_key(key_id, when)
    show(line(("Revoked", "bold"), f" {key_id} from {when:%Y-%m-%d %H:%M:%SZ}, in {key_book_file()}."))
    show(
        line("A revocation cannot be undone. People must give again the approvals that this key has signed since then.")
    )


@listed
def show_(*, how: Listing) -> None:
    """Show the book of keys: which sign, which only verify, and which are revoked."""
    from cli.json_answers_keys import KeyLine, KeysAnswer
    from client.front_key_files import key_book_file, read_book

    book = read_book(key_book_file())
    lines = how.rows((_line_of(key, book) for key in book.keys), KeyLine)
    names = [one.key_id for one in lines]
    how.tell(lambda: KeysAnswer(keys=tuple(lines)), lambda: _parts(lines), names, (len(book.keys), "key"))


def _line_of(key: PublicKey, book: KeyBook) -> KeyLine:
    from cli.json_answers_keys import KeyLine

    signing = book.signing_key
    status = "verifies" if signing is None or signing.key_id != key.key_id else "signs"
    return KeyLine(
        key_id=key.key_id,
        status="revoked" if key.revoked_from is not None else status,
        valid_from=key.valid_from,
        valid_until=key.valid_until,
        revoked_from=key.revoked_from,
    )


def _parts(keys: Sequence[KeyLine]) -> list[RenderableType]:
    from views.words import line, moment, row, table

    if not keys:
        return [line("The book of keys has no key.")]
    rows = table("KEY", "=STATUS", "=FROM", "=UNTIL", "=REVOKED", least=["REVOKED"])
    for key in keys:
        times = (moment(key.valid_from), moment(key.valid_until), moment(key.revoked_from))
        row(rows, key.key_id, key.status, *times, style="" if key.status == "signs" else "dim")
    return [rows]


def _show_new_key(key: PublicKey) -> None:
    from cli.output import show
    from client.front_key_files import front_key_file, key_book_file
    from views.words import line

    show(line(("Made", "bold"), f" key {key.key_id}: the front signs with {front_key_file()},"))
    show(line(f"workers read {key_book_file()} (BACKSTOP_KEYS)."))
