"""Checks that a row of the archive says what a warrant's ticket was signed for. Pure.

The archive does not take a worker's word for who gave a command: the row must be in the chain that the ticket is for,
with the signed reason and arguments, in the words that Backstop uses for that command.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from models.access.principals import Principal
from models.audit_chain import AuditEntry
from models.fleet.state import FLEET
from models.temporal_names import rollout_workflow_id

_NOT_SIGNED = frozenset({"warrant", "command", "stage", "proof"})
"""Fields of an entry's data that no signed message has, or that have another meaning in the entry."""
_TEXTS: Mapping[str, str] = {
    "rollout.launch": r"launched by {actor}( \(shadow\))?( in fleet rollout \S+)?(, adopting \S+)?",
    "fleet.launch": r"fleet rollout launched by {actor}(, taking over \S+)?( \(shadow\))?",
    "bringup.add": r"{cluster} is entered: .*",
    "request.ask": r"request {request}: .*",
    "request.approve": r"request {request}: approved",
    "request.decline": r"request {request}: declined",
    "request.withdraw": r"request {request}: withdrawn(: it is given back)?",
    "request.extend": r"request {request}: extended until .*",
}
_TEXT: Mapping[str, str] = {"rollout": r"{word} by {actor}"}
_ABOUT = r"{word}( .*)? by {actor}"
"""The text of all other commands; the subject is between the command's word and the actor."""
_WITHOUT_WORD = frozenset({"bringup.add", *(key for key in _TEXTS if key.startswith("request."))})
"""Commands whose name is missing from the entry's data."""
_REASONS: Mapping[str, tuple[str, ...]] = {
    "fleet.abort": ("fleet rollout aborted: {reason}",),
    "bringup.retire": ("{cluster} is retired: {reason}", "{cluster} is retired"),
}
"""The reasons that a machine gives to a member's rollout, besides the signed reason itself."""
_REASON_CHARS = 500


class Given(NamedTuple):
    """A warrant, as far as the archive needs it. `note`: a remark for the audit."""

    nonce: str
    command: str
    workflow: str
    subject: str
    by: Principal
    message: Mapping[str, Any]
    note: str


class Link(NamedTuple):
    """A warrant by which a machine commands a rollout on somebody's word. `parent`: the word's nonce and subject."""

    nonce: str
    command: str
    rollout: str
    cluster: str
    parent: str
    parent_subject: str


def proving_nonce(
    entry: AuditEntry, given: Given, links: Collection[Link], asked_for: Mapping[str, Collection[str]]
) -> str:
    """Return the nonce of the warrant that proves the entry's actor; empty if none does.

    `asked_for`: the clusters that a request was signed for, by its subject.
    """
    reason = str(given.message.get("reason", ""))
    if entry.actor != given.by.name or not _is_as_signed(entry.data, given.message):
        return ""
    if _is_at_its_place(entry, given, asked_for):
        return given.nonce if entry.reason == reason and _has_words(entry, given.command, given.command) else ""
    for link in links:
        same = (link.rollout, link.cluster) == (entry.rollout, entry.cluster)
        if same and _leads_to(given, link) and _has_words(entry, link.command, given.command):
            theirs = (one.format(reason=reason, cluster=entry.cluster) for one in _REASONS.get(given.command, ()))
            if entry.reason in (reason, *(one[:_REASON_CHARS] for one in theirs)):
                return link.nonce
    return ""


def _is_at_its_place(entry: AuditEntry, given: Given, asked_for: Mapping[str, Collection[str]]) -> bool:
    match given.command.partition(".")[0]:
        case "rollout":
            return (entry.rollout, rollout_workflow_id(entry.cluster)) == (given.subject, given.workflow)
        case "fleet":
            return (entry.rollout, entry.cluster) == (given.subject, FLEET)
        case "bringup":
            return given.subject == f"bringup/{entry.cluster}" and entry.data.get("command") == _command_word(
                given.command
            )
        case "request":
            own = given.subject == f"request/{entry.data.get('request')}" and not entry.rollout
            return own and entry.cluster in asked_for.get(given.subject, ())
        case _:
            return False


def _leads_to(given: Given, link: Link) -> bool:
    """Return whether the link was admitted on that word; a fleet's members, on an approval in its launcher's name."""
    of_launch = (given.command, link.command) == ("fleet.launch", "rollout.launch")
    return link.parent == given.nonce or (of_launch and link.parent_subject == given.subject)


def _has_words(entry: AuditEntry, command: str, signed: str) -> bool:
    """Return whether the entry has the words of that command.

    An admitted command may be recorded as refused only if it asks for a request that is refused at once.
    """
    if entry.data.get("command") != _command_word(command) or (entry.refused and signed != "request.ask"):
        return False
    pattern = _TEXTS.get(command) or _TEXT.get(command.partition(".")[0], _ABOUT)
    named = {"word": command.partition(".")[2], "actor": entry.actor, "cluster": entry.cluster}
    named["request"] = str(entry.data.get("request", ""))
    return re.fullmatch(pattern.format(**{key: re.escape(v) for key, v in named.items()}), entry.text) is not None


def _command_word(command: str) -> str | None:
    """Return the command's name as in an entry's data."""
    return None if command in _WITHOUT_WORD else command.partition(".")[2]


def _is_as_signed(data: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Return whether the entry's arguments are the signed ones. An unnamed step is chosen by the bring-up."""
    launch = data.get("launch")
    arguments = {key: v for key, v in data.items() if key not in _NOT_SIGNED and (key != "step" or message.get("step"))}
    return _is_within(arguments, message) and (not isinstance(launch, Mapping) or _is_within(launch, message))


def _is_within(said: object, signed: object) -> bool:
    if isinstance(said, Mapping) and isinstance(signed, Mapping):
        return all(_is_within(value, signed[name]) for name, value in said.items() if name in signed)
    if isinstance(said, list | tuple) and isinstance(signed, list | tuple):
        return len(said) == len(signed) and all(map(_is_within, said, signed))
    return said == signed
