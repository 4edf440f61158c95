"""`backstop login`, `logout` and `whoami`: your identity to the front."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from cli.lazy import command
from cli.list_options import tell
from cli.options import SET_UP, AsJson, actor_of, flag
from models.errors import BadInput

if TYPE_CHECKING:
    from client.http_exchange import AtUrl


@command(SET_UP, "BACKSTOP_URL=https://backstop.example.org backstop login")
def login() -> None:
    """Log in to the front that BACKSTOP_URL names, in a browser on any machine.

    The state folder keeps the tokens in login.json, which only you can read.
    """
    from cli.output import show
    from client.login import log_in
    from views.words import line

    place = _configured_front()

    def tell(address: str, code: str) -> None:
        show(line("Open ", (address, "bold"), " in a browser, on any machine."), line("The code is ", (code, "bold")))

    log_in(place, tell)
    identity = _ask_who(place)
    show(line(f"Logged in as {identity['name']}."))


@command(SET_UP, "backstop open", "backstop open --print", name="open")
def open_(only_print: Annotated[bool, flag("--print", "Only print the link; do not open a browser.")] = False) -> None:
    """Open the console in a browser, already logged in.

    The link can be used once, within two minutes. Where BACKSTOP_URL names a front, you log in there yourself.
    """
    import webbrowser

    from cli.output import show
    from cli.session import front
    from client.http_exchange import AtSocket, AtUrl
    from client.login import answer_of
    from models.errors import Unavailable
    from views.words import line

    place = front(actor_of(""))
    if place is None:
        raise Unavailable(
            "no front answers on this machine: start one with `backstop up`, or set BACKSTOP_URL to another front"
        )
    if isinstance(place, AtUrl):
        link = place.url
    else:
        assert isinstance(place, AtSocket)
        link = answer_of(place, "POST", "console-link", {"content-type": "application/json"})["url"]
    show(line((link, "bold")))
    if not only_print:
        webbrowser.open(link)


@command(SET_UP, "backstop logout")
def logout() -> None:
    """Forget the login on this machine."""
    from cli.output import show
    from client.login import log_out
    from views.words import line

    where = log_out()
    show(line(f"Logged out of {where}." if where else "Nobody was logged in."))


@command(SET_UP, "backstop whoami")
def whoami(as_json: AsJson = False) -> None:
    """Show your name, your front, and how the front knows who you are."""
    from cli.json_answers_login import Whoami
    from cli.session import front
    from client.http_exchange import AtSocket
    from views.words import line

    place = front(actor_of(""))
    if place is None:
        identity = {
            "name": actor_of(""),
            "proof": "asserted",
            "how": "not checked, because no front answers on this machine",
        }
        where = "Temporal"
    else:
        identity, where = _ask_who(place), str(place.path if isinstance(place, AtSocket) else getattr(place, "url", ""))
    answer = Whoami(
        name=identity["name"],
        proof=identity["proof"],
        how=identity["how"],
        groups=tuple(identity.get("groups", ())),
        to=where,
    )
    proven = "asserted" if answer.proof == "asserted" else f"proven ({answer.proof})"
    groups = [line(f"Groups: {', '.join(answer.groups)}")] if answer.groups else []
    sentence = line((answer.name, "bold"), f", {proven}: {answer.how}; commands go to {where}")
    tell(answer, lambda: [sentence, *groups], as_json=as_json)


def _configured_front() -> AtUrl:
    from client.http_exchange import AtUrl

    url = os.environ.get("BACKSTOP_URL", "")
    if not url:
        raise BadInput(
            "BACKSTOP_URL is not set: set it to the address of the front (the front on this machine needs no login)"
        )
    return AtUrl(url)


def _ask_who(place: Any) -> dict[str, Any]:
    from cli.session import bearer
    from client.login import answer_of

    token = bearer(place)()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return answer_of(place, "GET", "whoami", headers)
