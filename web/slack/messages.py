"""Messages in Slack's form: sentences, what the command line prints, questions, an answered notice.

All text is escaped (activities/notices/buttons.py): no name and no reason becomes a mention, a link or a channel. A
sentence is in a block of plain text, where stars and underscores are ordinary.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError
from rich.console import Console, RenderableType

from activities.notices.buttons import Act, ButtonRow, Press, blocks_of, slack_text
from models.texts import count_text, verb_of

Message = dict[str, Any]
_WIDTH = 78
_PIECE, _MOST_PIECES = 2700, 4
"""Most characters of one block, of which Slack allows 3,000, and most blocks of one answer."""
_DONE = "backstop.done"
_MOST_DONE = 20
SURE = "backstop.sure"
REASON = "backstop.reason"


def to_one(*blocks: dict[str, Any], text: str) -> Message:
    """Return a message for the caller alone; the channel's stays. `text`: the notification's."""
    return {
        "response_type": "ephemeral",
        "replace_original": False,
        "text": slack_text(text)[:_PIECE],
        "blocks": list(blocks) or [plain_block(text)],
    }


def in_place(text: str) -> Message:
    """Return the sentence that replaces our question."""
    return {"replace_original": True, "text": slack_text(text)[:_PIECE], "blocks": [plain_block(text)]}


def to_all(text: str) -> Message:
    """Return another message for the channel."""
    shown = {"text": slack_text(text)[:_PIECE], "blocks": [plain_block(text)]}
    return {"response_type": "in_channel", "replace_original": False, **shown}


def plain_block(text: str, block_id: str = "") -> dict[str, Any]:
    safe = slack_text(text)
    while len(safe) > _PIECE:  # what is escaped is up to five times as long
        text = text[: max(1, len(text) * _PIECE // len(safe) - 1)]
        safe = f"{slack_text(text)}…"
    block = {"type": "section", "text": {"type": "plain_text", "text": safe or " ", "emoji": False}}
    return block | ({"block_id": block_id} if block_id else {})


def print_blocks(parts: Iterable[RenderableType]) -> list[dict[str, Any]]:
    """Write views in a monospaced block. A text that is too long ends with a line that says so."""
    out = io.StringIO()
    console = Console(
        file=out, width=_WIDTH, color_system=None, force_terminal=False, markup=False, emoji=False, highlight=False
    )
    for part in parts:
        console.print(part)
    pieces, left = [""], 0
    for line in out.getvalue().rstrip().splitlines():
        safe = slack_text(line.rstrip().replace("`", "'"))[:_PIECE]
        if left or (len(pieces[-1]) + len(safe) >= _PIECE and len(pieces) == _MOST_PIECES):
            left += 1
        elif len(pieces[-1]) + len(safe) >= _PIECE:
            pieces.append(safe)
        else:
            pieces[-1] += f"\n{safe}" if pieces[-1] else safe
    blocks = [
        {"type": "section", "text": {"type": "mrkdwn", "text": f"```{p}```", "verbatim": True}} for p in pieces if p
    ]
    return [
        *blocks,
        *([plain_block(f"{count_text(left, 'more line')} {verb_of(left)} left out here.")] if left else []),
    ]


def buttons(*presses: Press) -> list[dict[str, Any]]:
    """Return the same buttons as under a notice."""
    return blocks_of((ButtonRow(presses[0].cluster, presses),))


def link(url: str, text: str) -> dict[str, Any]:
    return {
        "type": "context",
        "elements": [{"type": "mrkdwn", "text": f"<{slack_text(url)}|{slack_text(text)}>", "verbatim": True}],
    }


def sure_button(label: str, value: str, *, danger: bool = False) -> dict[str, Any]:
    """Return the button that carries the command out."""
    button = {
        "type": "button",
        "action_id": SURE,
        "text": {"type": "plain_text", "text": slack_text(label)[:75], "emoji": False},
        "value": value,
        "style": "danger" if danger else "primary",
    }
    return {"type": "actions", "elements": [button]}


def asks_reason(label: str) -> dict[str, Any]:
    field = {"type": "plain_text_input", "action_id": REASON, "multiline": True, "max_length": 1000}
    return {"type": "input", "label": {"type": "plain_text", "text": slack_text(label)[:2000]}, "element": field}


class Answered(NamedTuple):
    """A notice in a channel: its original words, the answers so far, and the buttons that are left."""

    words: Mapping[str, str]
    done: tuple[str, ...]
    rows: tuple[ButtonRow, ...]

    def with_done(self, said: str, press: Press) -> Answered:
        """Add an answer. Only the button of an acknowledgement or approval goes: others may still object, and look."""
        over = press.act in (Act.ACK, Act.APPROVE)
        rows = (ButtonRow(row.cluster, tuple(p for p in row.presses if not (over and p == press))) for row in self.rows)
        return Answered(self.words, (*self.done, said)[-_MOST_DONE:], tuple(row for row in rows if row.presses))

    @property
    def message(self) -> Message:
        """The message that replaces the notice."""
        done = [plain_block(sentence, f"{_DONE}.{number}") for number, sentence in enumerate(self.done)]
        colour = {"color": self.words["color"]} if "color" in self.words else {}
        below = {**colour, "blocks": [*done, *blocks_of(self.rows)]}
        return {"replace_original": True, "attachments": [dict(self.words), below]}


_WORDS = {"title": 500, "text": 40_000, "color": 20}


def answered_notice(message: Mapping[str, Any]) -> Answered | None:
    """Return the notice above a button, from Slack's copy; None: no worker wrote it."""
    attachments = message.get("attachments")
    if not isinstance(attachments, list) or len(attachments) != 2 or not all(isinstance(a, dict) for a in attachments):
        return None
    first, below = attachments
    words = {name: _as_it_was(first[name])[:most] for name, most in _WORDS.items() if isinstance(first.get(name), str)}
    blocks = below.get("blocks")
    if "text" not in words or not isinstance(blocks, list):
        return None
    parts = [one for one in blocks if isinstance(one, dict)]
    done = [_text_of(one) for one in parts if str(one.get("block_id", "")).startswith(_DONE)]
    rows = [_row_of(one) for one in parts if one.get("type") == "actions"]
    return Answered(words, tuple(done), tuple(row for row in rows if row is not None))


def _as_it_was(text: str) -> str:
    """Escape Slack's copy of our text again, so that a link that Slack made of an address stays text."""
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _text_of(block: Mapping[str, Any]) -> str:
    """Return the text without escapes."""
    inner = block.get("text")
    text = inner.get("text", "") if isinstance(inner, dict) else ""
    return str(text).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _row_of(block: Mapping[str, Any]) -> ButtonRow | None:
    presses = []
    for element in block.get("elements") or ():
        try:
            presses.append(Press.model_validate_json(str(element.get("value", ""))))
        except (ValidationError, AttributeError):
            return None
    return ButtonRow(presses[0].cluster, tuple(presses)) if presses else None
