"""`backstop countersign`: commands that wait for a second person, and that person's confirmation."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.consent import Yes, consent
from cli.list_options import Listing, listed, tell
from cli.options import Actor, AsJson, ReasonOption, actor_of, arg, examples
from cli.session import ask
from models.errors import BadInput
from models.lifecycle.command_rows import DECIDE

Hash = Annotated[str, arg("HASH", "The waiting command's hash, as `countersign list` shows it.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Countersign another person's command, as the second person.")
    for name, command, lines in (
        ("list", list_, ("backstop countersign list",)),
        ("give", give, ("backstop countersign give 4f2a9c1b7d3e5f60",)),
        ("withdraw", withdraw, ("backstop countersign withdraw 4f2a9c1b7d3e5f60 --reason 'the wrong recipe'",)),
    ):
        group.command(name, epilog=examples(*lines))(command)
    app.add_typer(group, name="countersign", rich_help_panel=DECIDE)


@listed
def list_(*, how: Listing, actor: Actor = "") -> None:
    """List the commands that wait for a second person: what each would do, who gave it, who could countersign it,
    and until when."""
    from cli.json_answers_access import WaitingAnswer
    from models.access.second_persons import SHOWN_DIGITS, Waiting
    from models.countersign_questions import WaitingNow
    from views.countersign import waiting_parts

    waiting = ask(actor_of(actor), lambda door: door.ask(WaitingNow()))
    lines = how.rows(waiting, Waiting)
    names = [one.hash[:SHOWN_DIGITS] for one in lines]
    how.tell(
        lambda: WaitingAnswer(waiting=tuple(lines)), lambda: waiting_parts(lines), names, (len(waiting), "command")
    )


def give(digest: Hash, yes: Yes = False, as_json: AsJson = False, actor: Actor = "") -> None:
    """Countersign a command that somebody else gave: Backstop carries it out now, in both names.

    Backstop shows the whole command and asks; without a terminal it only shows the command. You must come through a
    front, have the role that docs/access.md names, and not be the person who gave the command.
    """
    from cli.json_answers_access import CountersignedAnswer
    from cli.output import show
    from models.countersign_questions import WaitingOne
    from views.countersign import NO_UNDO, given_words, whole_parts
    from views.words import line

    person, name = actor_of(actor), _hash(digest)
    if not yes and not as_json:
        show(*whole_parts(ask(person, lambda door: door.ask(WaitingOne(hash=name)))))
    consent("Countersign it?", tuple, yes=yes, as_json=as_json)
    done = ask(person, lambda door: door.countersign(name))
    answer = CountersignedAnswer(**{**dict(done), "undo": done.undo or NO_UNDO})
    tell(answer, lambda: [line(words) for words in given_words(done)], as_json=as_json)


def withdraw(digest: Hash, reason: ReasonOption = "", as_json: AsJson = False, actor: Actor = "") -> None:
    """Withdraw a command that you gave, before anybody has countersigned it."""
    from cli.json_answers_access import WithdrawnAnswer
    from models.countersign_questions import WithdrawWaiting
    from views.words import line

    name = _hash(digest)
    gone = ask(actor_of(actor), lambda door: door.ask(WithdrawWaiting(hash=name, reason=reason)))
    undo = "It cannot be undone: give the command again."
    sentence = line(f"Withdrawn: the command to {gone.what} no longer waits for a second person. {undo}")
    tell(WithdrawnAnswer.build_from(gone, undo=undo), lambda: [sentence], as_json=as_json)


def _hash(digest: str) -> str:
    """Check a hash's form, and return it in small letters. Errors: BadInput."""
    from models.access.second_persons import WAITING_HASH_IS, is_waiting_hash

    name = digest.strip().lower()
    if not is_waiting_hash(name):
        raise BadInput(f"HASH {WAITING_HASH_IS}, not {digest[:80]!r}")
    return name
