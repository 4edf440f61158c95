"""Buttons under a notice in a chat: the answers its reader can give, and how an answer crosses the wire.

A worker puts them under a notice, and the front takes the press (web/slack). A press proves nothing by itself: anybody
who knows a webhook's address can post any button. So a button names what its reader wants to see or to say, and the
front asks who presses, and whether they may. Source: docs/adr/0075.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from html import escape
from typing import Any, NamedTuple

from pydantic import Field

from activities.notices.rendering import goes_to_owner
from models.base import Model, Text
from models.notice_digests import still_asks
from models.notices import Notice, NoticeKind
from models.rollout.stages import Command
from models.texts import count_text

MOST_ANSWERED = 8
"""The most notices in one message that have buttons; the others are answered by command."""
VALUE_CHARS = 2000
"""The most characters of a button's value that Slack accepts."""


class Act(StrEnum):
    """The purpose of a button."""

    APPROVE = "approve"
    """Shows the plan's effect and asks for confirmation."""
    ACK = "ack"
    OBJECT = "object"
    """Asks for the reason of the objection."""
    SHOW = "show"


class Press(Model):
    """The value of a button."""

    act: Act
    cluster: Text = Field(min_length=1, max_length=200)
    team: Text = Field(default="", max_length=200)
    plan: Text = Field(default="", max_length=64)
    """The hash of the plan that the message names."""

    @property
    def value(self) -> str:
        return self.model_dump_json(exclude_defaults=True)


class ButtonRow(NamedTuple):
    """The buttons of one notice."""

    cluster: str
    presses: tuple[Press, ...]


_LABELS = {Act.APPROVE: "Approve…", Act.ACK: "Acknowledge", Act.OBJECT: "Object…", Act.SHOW: "Show me"}
_OF_TEAMS = frozenset(
    {
        *(NoticeKind.PLANNED, NoticeKind.CHANGED, NoticeKind.BUFFERED, NoticeKind.ENFORCED, NoticeKind.MONITORED),
        *(NoticeKind.AT_RISK, NoticeKind.BREACH, NoticeKind.ROLLED_BACK),
    }
)
"""Kinds whose text lists the commands to acknowledge and to object."""
_OF_OWNERS = frozenset({NoticeKind.HELD, NoticeKind.BREACH, NoticeKind.STUCK})


def rows_of(notice: Notice) -> tuple[ButtonRow, ...]:
    """Return the buttons of a message; for several notices together, of those that still want an answer."""
    if notice.kind is not NoticeKind.DIGEST:
        row = _row(notice)
        return (row,) if row.presses else ()
    among = [Notice.model_validate(one) for one in notice.facts.get("notices", ())]
    asking = still_asks(among)
    rows = (_row(one) for one in among if one.key in asking)
    return tuple(row for row in rows if row.presses)


def _row(notice: Notice) -> ButtonRow:
    cluster, to_owner = notice.cluster, goes_to_owner(notice)
    presses: list[Press] = []
    if not notice.facts.get("ends") and not notice.shadow:
        if to_owner and notice.kind in _OF_OWNERS:
            plan = _plan_in(notice)
            presses += [Press(act=Act.APPROVE, cluster=cluster, plan=plan)] if plan else []
            presses.append(Press(act=Act.SHOW, cluster=cluster))
        elif not to_owner and notice.kind in _OF_TEAMS:
            own = {"cluster": cluster, "team": notice.audience}
            presses += [Press(act=act, **own) for act in (Act.ACK, Act.OBJECT, Act.SHOW)]
    return ButtonRow(cluster, tuple(press for press in presses if len(press.value) <= VALUE_CHARS))


def _plan_in(notice: Notice) -> str:
    """Return the hash in the line that approves, if the notice has that line; empty: nothing awaits an approval."""
    for command in notice.facts.get("commands") or ():
        words = shlex.split(str(command.get("line", ""))) if isinstance(command, dict) else []
        if words[:2] == ["backstop", Command.APPROVE.value] and "--plan" in words[:-1]:
            return words[words.index("--plan") + 1]
    return ""


def slack_text(text: str) -> str:
    """Escape Slack's markup, so that no text becomes a mention, a link or a channel there."""
    return escape(text, quote=False)


def blocks_of(rows: tuple[ButtonRow, ...]) -> list[dict[str, Any]]:
    """Return the buttons as Slack's Block Kit has them."""
    blocks: list[dict[str, Any]] = []
    for number, row in enumerate(rows[:MOST_ANSWERED]):
        if len(rows) > 1:
            blocks.append(_words(f"{row.cluster}:"))
        blocks.append({"type": "actions", "block_id": f"backstop.{number}", "elements": _elements(row)})
    if len(rows) > MOST_ANSWERED:
        left = len(rows) - MOST_ANSWERED
        blocks.append(
            _words(f"{count_text(left, 'more notice')} can be answered: send /backstop status CLUSTER for the buttons")
        )
    return blocks


def _words(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "plain_text", "text": slack_text(text), "emoji": False}}


def _elements(row: ButtonRow) -> list[dict[str, Any]]:
    return [
        {
            "type": "button",
            "action_id": f"backstop.{press.act}",
            "text": {"type": "plain_text", "text": _LABELS[press.act], "emoji": False},
            "value": press.value,
            **({"style": "primary"} if press.act is Act.APPROVE else {}),
        }
        for press in row.presses
    ]
