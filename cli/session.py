"""Opens the door for one command, asks, and closes it.

The command goes through the front where there is one, which knows who calls: the front at BACKSTOP_URL, else that of
`backstop up` on this machine. Otherwise it goes straight to Temporal, and the name is only asserted.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from cli.lazy_models import import_lightly
from client.emergency import NEEDS_FRONT, acts_alone
from models.errors import BackstopError, BadInput, Refusal

if TYPE_CHECKING:
    from client.backstop import Backstop
    from client.http_exchange import FrontPlace

_T = TypeVar("_T")


def ask(actor: str, question: Callable[[Backstop], Awaitable[_T]]) -> _T:
    """Return the answer to one question. Errors: models.errors, Unavailable when nothing answers."""
    return asyncio.run(ask_inside(actor, question))


async def ask_inside(actor: str, question: Callable[[Backstop], Awaitable[_T]]) -> _T:
    """Return the answer to one question, inside a running loop."""
    import_lightly()
    from client import telemetry

    place = front(actor)
    if place is None and acts_alone.get():
        raise BadInput(NEEDS_FRONT)
    if place is not None and not telemetry.is_traced():
        from client.http_door import http_door

        return await question(_show_notes(http_door(place, bearer(place))))
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    with telemetry.trace_command(command) as (plugins, runtime):
        if place is not None:
            from client.http_door import http_door

            return await question(_show_notes(http_door(place, bearer(place))))
        # Imported late: Temporal's client takes longer to import than most commands take to run.
        from client.backstop import Backstop

        door = _show_notes(await Backstop.connect(actor, plugins=plugins, runtime=runtime))
        try:
            return await question(door)
        finally:
            await door.close()


async def or_nobody(names: Awaitable[list[str]]) -> list[str]:
    """Return who could act, or nobody if no answer comes: the caller shows other facts without it."""
    try:
        return await names
    except BackstopError:
        return []


def _show_notes(door: Backstop) -> Backstop:
    """Show each of the door's notes once: why a person waits, and what happens to a command that they interrupt."""
    from cli.output import complain

    read: set[str] = set()

    def note(sentence: str) -> None:
        if sentence not in read:
            read.add(sentence)
            complain(sentence)

    door.note = note
    return door


def prepare_imports(actor: str) -> None:
    """Import the modules that a question needs."""
    import_lightly()
    if front(actor) is None:
        import client.backstop
    else:
        import client.http_door  # noqa: F401


def front(actor: str) -> FrontPlace | None:
    """Return the front that takes this person's commands; None: there is none, or `--actor` names somebody else.

    Errors: BadInput for a malformed address; Refusal for a name that the front at BACKSTOP_URL would not take.
    """
    url, own = os.environ.get("BACKSTOP_URL", ""), _own_name()
    if url:
        from client.http_exchange import AtUrl

        if actor != own:
            raise Refusal(f"--actor {actor}: the front records who logged in; leave --actor and BACKSTOP_ACTOR out")
        return AtUrl(url)
    from client.places import front_socket

    if actor != own or not front_socket().exists():
        return None
    from client.http_exchange import AtSocket

    place = AtSocket(front_socket())
    return place if place.answers() and _is_same_temporal() else None


def _own_name() -> str:
    from cli.options import actor_of

    try:
        return actor_of("")
    except BadInput:
        return ""


def _is_same_temporal() -> bool:
    """Return whether this machine's front uses the Temporal that the command means: another may be configured."""
    if not any(name.startswith("TEMPORAL_") and value for name, value in os.environ.items()) and not _has_profile():
        return True
    import json

    from client.connection import find_target
    from client.places import front_file, front_socket

    target = find_target()
    try:
        document = json.loads(front_file(front_socket()).read_text())
    except (OSError, ValueError):
        return False
    return bool(document == {"address": target.address, "namespace": target.namespace})


def _has_profile() -> bool:
    """Return whether Temporal's own command line may have a profile, in its usual place."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.exists(os.path.join(base, "temporalio", "temporal.toml"))


def bearer(place: FrontPlace) -> Callable[[], str]:
    """Return a function that gives the token; it is empty at the socket, where the kernel identifies the caller."""
    from client.http_exchange import AtSocket

    if isinstance(place, AtSocket):
        return lambda: ""
    if token := os.environ.get("BACKSTOP_TOKEN", "").strip():
        return lambda: token
    from client.login import kept_token

    return lambda: kept_token(place)
