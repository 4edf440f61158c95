"""`backstop keys payload`: the keys that payloads are encrypted with (docs/secrets.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.list_options import Listing, listed
from cli.options import examples, opt
from models.errors import BadInput, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from cli.json_answers_keys import PayloadKeyLine


def payload_group() -> typer.Typer:
    """`keys payload`, beside the other kinds of keys."""
    group = typer.Typer(no_args_is_help=True, help="Keys that encrypt what Temporal keeps.")
    group.command("new", epilog=examples("backstop keys payload new"))(new)
    group.command("rotate", epilog=examples("backstop keys payload rotate --after 1h"))(rotate)
    group.command("show", epilog=examples("backstop keys payload show"))(show_)
    return group


def new() -> None:
    """Make the first payload key, which encrypts what Backstop stores in Temporal. Each worker and client that has
    the key file then uses it.

    Give the file to all of them and restart them. Keep a copy: without it nobody can read the histories.
    """
    from cli.output import show
    from client.payload_keys import PayloadKeys, keys_file, new_key, write_keys
    from views.words import line

    path, now = keys_file(), datetime.now(UTC)
    if path.exists():
        raise Refusal(f"{path} already exists: `backstop keys payload rotate` adds a new key to it")
    key = new_key(now, now)
    write_keys(path, PayloadKeys(since=now, keys=(key,)))
    show(line(("Made", "bold"), f" payload key {key.key_id} in {path}: give this file to every worker and client"))
    show(
        line("(BACKSTOP_PAYLOAD_KEYS), and restart them. Keep a copy: without the file nobody can read the histories.")
    )


def rotate(
    after: Annotated[
        str, opt("TIME", "The wait before the new key encrypts; by its end, all machines need the file.", "--after")
    ] = "0s",
) -> None:
    """Add a new key to the file. The earlier keys stay there and decrypt what they encrypted.

    Workers and clients reload the file. With several machines use --after, so that all have the new key before it
    encrypts.
    """
    from cli.output import show
    from client.payload_keys import keys_file, read_keys, rotate_keys, write_keys
    from models.base import duration_text, parse_duration
    from models.texts import brief
    from views.words import line

    try:
        path, later = keys_file(), parse_duration(after)
    except ValueError:
        raise BadInput(f"--after must be a duration such as 1h, not {brief(after)}") from None
    keys = rotate_keys(read_keys(path), datetime.now(UTC), later)
    write_keys(path, keys)
    when = f"in {duration_text(later)}" if later else "from now on"
    show(line(("Rotated", "bold"), f": payload key {keys.keys[-1].key_id} encrypts {when}; the key is in {path}."))


@listed
def show_(*, how: Listing) -> None:
    """Show which payload keys there are and which one encrypts, but no key itself."""
    from cli.json_answers_keys import PayloadKeyLine, PayloadKeysAnswer
    from client.payload_keys import keys_file, read_keys

    keys, now = read_keys(keys_file()), datetime.now(UTC)
    used = keys.encrypting_key(now)
    lines = how.rows(
        (
            PayloadKeyLine(
                key_id=key.key_id,
                status="encrypts" if key == used else "decrypts" if key.use_from <= now else "waits",
                use_from=key.use_from,
            )
            for key in sorted(keys.keys, key=lambda key: key.use_from, reverse=True)
        ),
        PayloadKeyLine,
    )
    names = [one.key_id for one in lines]
    answer = PayloadKeysAnswer(since=keys.since, keys=tuple(lines))
    how.tell(lambda: answer, lambda: _parts(lines), names, (len(keys.keys), "key"))


def _parts(keys: Sequence[PayloadKeyLine]) -> list[RenderableType]:
    from views.words import moment, row, table

    rows = table("KEY", "=STATUS", "=FROM")
    for key in keys:
        row(rows, key.key_id, key.status, moment(key.use_from), style="" if key.status == "encrypts" else "dim")
    return [rows]
