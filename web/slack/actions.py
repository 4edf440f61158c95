"""Carries out a button or a slash command for a known person.

It uses the same door as pages and the API (web/authorized_calls.py), and answers in the same words.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from activities.notices.buttons import Act, Press
from models.errors import BadInput, Refusal
from models.questions import WhyNot
from models.rollout.command_previews import Ahead
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.commands import CommandRequest, other_plan
from models.rollout.messages import CommandAnswer
from models.rollout.stages import Command
from models.rollout.status_models import RolloutStatus
from views.consequence import approved_line
from views.plan import plan_parts
from views.status import status_parts
from views.why import in_full, summary
from views.words import line, moment
from web.console.forms import fill_model, number
from web.console.views_html import place
from web.console.visit import Visit
from web.console.visit_door import door_of
from web.slack import messages
from web.slack.messages import REASON, SURE, Answered, Message
from web.slack.reading import Pressed, SlackPerson, Typed
from web.slack.signed_confirmation import SECONDS, Sure, sure_of

_MOST_KEPT = 1000
_WORD = re.compile(r'\s*(?:"([^"]*)"|(\S+))')
HELP = (
    "/backstop why TEAM [CLUSTER] [GPUS]: why a team cannot use its quota. "
    "/backstop status CLUSTER: the state of its rollout, and what awaits an approval. "
    "/backstop ack CLUSTER TEAM: acknowledge the notice for a team. /backstop object CLUSTER TEAM REASON: "
    "object for a team. "
    'Put names with spaces in "quotes".'
)


class Reply(NamedTuple):
    """An answer. `at`: the address where Slack takes it."""

    at: str
    message: Message


class Caller(NamedTuple):
    """The person who presses or types, by their names in Slack and in the access file, and their visit."""

    slack: SlackPerson
    name: str
    visit: Visit

    async def command(self, cluster: str, command: Command, **said: str) -> CommandAnswer:
        """Give a command to a rollout. Errors: BackstopError, Problem: nothing was done."""
        request = fill_model(CommandRequest, actor=self.name, **said)
        answer: CommandAnswer = await self.visit.call("command", cluster=cluster, command=command, request=request)
        return answer

    async def why_not(self, cluster: str, command: Command, **said: str) -> str:
        request = fill_model(CommandRequest, actor=self.name, **said)
        return await self.visit.why_not("command", cluster=cluster, command=command, request=request)


@dataclass
class Acts:
    """The actions of one front. `secret`: reads Slack's signing secret; `page`: the console's URL, empty: none."""

    secret: Callable[[], str]
    page: str = ""
    clock: Callable[[], float] = time.time
    notices: OrderedDict[str, Answered] = field(default_factory=OrderedDict)
    """Notices whose button asks for a confirmation, by the address for answers. Best effort: for a notice that is not
    here the channel gets another message."""

    # --- buttons ------------------------------------------------------------------------------------

    async def press(self, who: Caller, given: Pressed) -> list[Reply]:
        """Carry out a pressed button. Errors: BackstopError, Problem: nothing was done."""
        if given.button == SURE:
            return await self._sure(who, given)
        try:
            press = Press.model_validate_json(given.value)
        except ValidationError:
            raise BadInput("this button is not from this version of Backstop: use the newest message") from None
        if given.button != f"backstop.{press.act}":
            raise BadInput("this button is not from Backstop")
        return await _ACTS[press.act](self, who, given, press)

    async def _ack(self, who: Caller, given: Pressed, press: Press) -> list[Reply]:
        answer = await who.command(press.cluster, Command.ACK, team=press.team)
        return [
            self._channel_reply(
                given.reply_at, messages.answered_notice(given.message), press, _by(press.cluster, answer, who)
            )
        ]

    async def _approve(self, who: Caller, given: Pressed, press: Press) -> list[Reply]:
        ahead: Ahead = await who.visit.call("ahead", cluster=press.cluster)
        if refusal := ahead.refusal(Command.APPROVE, ""):
            raise Refusal(f"{Command.APPROVE} is not possible while {press.cluster} is {ahead.stage}: {refusal}")
        if ahead.plan is None:
            status: RolloutStatus = await who.visit.call("status", cluster=press.cluster)
            done = status.approved_by and status.plan_hash == press.plan
            already = f"plan {press.plan} is already approved, by {status.approved_by}"
            raise Refusal(already if done else f"nothing awaits an approval in {press.cluster}")
        if ahead.plan.hash != press.plan:
            raise Refusal(f"{other_plan(ahead.plan.hash, press.plan)} (/backstop status {_quote(press.cluster)})")
        if why := await who.why_not(press.cluster, Command.APPROVE, plan_hash=press.plan):
            raise Refusal(why)
        ask = f"Approve plan {press.plan} of {press.cluster}? {_consequence(Command.APPROVE)}"
        shown = messages.print_blocks([*plan_parts(ahead.plan), approved_line([ahead])])
        button = messages.sure_button(f"Approve plan {press.plan}", self._sign_button(who, given, press))
        return [Reply(given.reply_at, messages.to_one(*shown, messages.plain_block(ask), button, text=ask))]

    async def _object(self, who: Caller, given: Pressed, press: Press) -> list[Reply]:
        if why := await who.why_not(press.cluster, Command.OBJECT, team=press.team, reason="asked ahead"):
            raise Refusal(why)
        ask = f"Why does {press.team} object to the rollout in {press.cluster}?"
        line_ = f"/backstop object {_quote(press.cluster)} {_quote(press.team)} REASON"
        typed = f"If you see no field to type into, send: {line_}"
        blocks = (
            messages.asks_reason(ask),
            messages.sure_button("Object", self._sign_button(who, given, press), danger=True),
            messages.plain_block(f"{_consequence(Command.OBJECT)} {typed}"),
        )
        return [Reply(given.reply_at, messages.to_one(*blocks, text=ask))]

    async def _show(self, who: Caller, given: Pressed, press: Press) -> list[Reply]:
        return [Reply(given.reply_at, await self.status(who, press.cluster))]

    async def _sure(self, who: Caller, given: Pressed) -> list[Reply]:
        asked = sure_of(given.value, self.secret(), who.slack, self.clock())
        press = asked.press
        if press.act is Act.APPROVE:
            answer, more = await who.command(press.cluster, Command.APPROVE, plan_hash=press.plan), ""
        else:
            reason = given.typed.get(REASON, "").strip()
            answer = await who.command(press.cluster, Command.OBJECT, team=press.team, reason=reason)
            more = f" The reason: {reason}"
        replies = [Reply(given.reply_at, messages.in_place(_undoable(press.cluster, answer)))]
        if asked.back:
            notice = self.notices.pop(asked.back, None)
            replies.append(self._channel_reply(asked.back, notice, press, _by(press.cluster, answer, who) + more))
        return replies

    def _sign_button(self, who: Caller, given: Pressed, press: Press) -> str:
        """Return the value of the second button. Errors: Refusal."""
        notice = messages.answered_notice(given.message)
        if notice is not None:
            self.notices[given.reply_at] = notice
            while len(self.notices) > _MOST_KEPT:
                self.notices.popitem(last=False)
        back = given.reply_at if notice is not None else ""
        until = int(self.clock()) + SECONDS
        sure = Sure(press=press, workspace=who.slack.workspace, user=who.slack.user, until=until, back=back)
        return sure.sign(self.secret())

    def _channel_reply(self, at: str, notice: Answered | None, press: Press, said: str) -> Reply:
        """Return the channel's message: under the notice where that is known, else beside it."""
        return Reply(at, messages.to_all(said) if notice is None else notice.with_done(said, press).message)

    # --- slash commands -----------------------------------------------------------------------------

    async def type_command(self, who: Caller, given: Typed) -> Message:
        """Carry out a slash command. Errors: BackstopError, Problem: nothing was done."""
        words, _ = _split(given.text, 4)
        command = words[0].lower() if words else "help"
        match command, len(words):
            case "why", 2 | 3 | 4:
                return await self._why(who, *words[1:])
            case "status", 2:
                return await self.status(who, words[1])
            case "ack", 3:
                answer = await who.command(words[1], Command.ACK, team=words[2])
                return messages.to_one(text=_undoable(words[1], answer))
            case "object", 3 | 4:
                reason = _split(given.text, 3)[1]
                answer = await who.command(words[1], Command.OBJECT, team=words[2], reason=reason)
                return messages.to_one(text=_undoable(words[1], answer))
            case "help", _:
                return messages.to_one(text=HELP)
        raise BadInput(f"Backstop has no such command in Slack. {HELP}")

    async def _why(self, who: Caller, team: str, cluster: str = "", gpus: str = "") -> Message:
        """Answer as `backstop why` does; for one cluster with every reason."""
        wanted = number("GPUS", gpus) if gpus else None
        answers = await who.visit.ask(fill_model(WhyNot, team=team, cluster=cluster, gpus=wanted))
        if not answers.teams:
            raise BadInput(
                "; ".join(answers.unanswered.values()) or f"no cluster in the ledger has a quota of team {team!r}"
            )
        lacking = [one for one in answers.teams if one.gap_gpus or one.over_gpus]
        flexes, _ = await who.visit.try_read(door_of(who.visit).flex()) if lacking else ([], "")
        parts = summary(answers, flexes or [], hint=False)
        if cluster:
            status, _ = await who.visit.try_call("status", cluster=cluster)
            statuses = {cluster: status} if status is not None else {}
            parts = [*parts, line(), *in_full(answers, statuses, flexes or [])]
        return messages.to_one(
            *messages.print_blocks(parts), *self._link("teams", team), text=f"Why {team} cannot use its quota"
        )

    async def status(self, who: Caller, cluster: str) -> Message:
        """Answer as `backstop status` does, with a button where a plan awaits an approval."""
        status: RolloutStatus = await who.visit.call("status", cluster=cluster)
        visit = who.visit
        (could, _), (ahead, _) = await asyncio.gather(
            visit.try_call("could_act", cluster=cluster) if status.needs else _nothing([]),
            visit.try_call("ahead", cluster=cluster) if not status.stage.has_ended else _nothing(None),
        )
        blocks = messages.print_blocks(status_parts(status, visit.now, could=could or ()))
        plan = None if ahead is None else ahead.plan
        if plan is not None:
            press = Press(act=Act.APPROVE, cluster=cluster, plan=plan.hash)
            blocks += [*messages.print_blocks(plan_parts(plan)), *messages.buttons(press)]
        return messages.to_one(*blocks, *self._link("clusters", cluster), text=f"{cluster} is {status.stage}")

    def _link(self, *path: str) -> list[dict[str, Any]]:
        return [messages.link(self.page + place(*path), "Open the page")] if self.page else []


_ACTS: dict[Act, Callable[[Acts, Caller, Pressed, Press], Awaitable[list[Reply]]]] = {
    Act.APPROVE: Acts._approve,
    Act.ACK: Acts._ack,
    Act.OBJECT: Acts._object,
    Act.SHOW: Acts._show,
}


async def _nothing(value: Any) -> tuple[Any, str]:
    return value, ""


def _by(cluster: str, answer: CommandAnswer, who: Caller) -> str:
    """Say to the channel what was done, by whom and when."""
    return f"{cluster}: {answer.said}, by {who.name} at {moment(who.visit.now)}."


def _undoable(cluster: str, answer: CommandAnswer) -> str:
    """Say to the person who did it what follows, and how to undo it."""
    undo = f" {answer.undo}." if answer.undo else ""
    return f"{cluster}: {answer.said}.{undo}"


def _split(text: str, most: int) -> tuple[list[str], str]:
    """Return the first words, and the rest as it was typed. Slack turns straight quotes into curled ones."""
    rest, words = text.replace("“", '"').replace("”", '"').strip(), list[str]()
    while rest and len(words) < most:
        match = _WORD.match(rest)
        if match is None:
            break
        words.append(match[1] if match[1] is not None else match[2])
        rest = rest[match.end() :].strip()
    return words, rest


def _quote(name: str) -> str:
    return f'"{name}"' if re.search(r"\s", name) else name


def _consequence(command: Command) -> str:
    """Return the command's summary without the first sentence, which repeats its name."""
    return ROLLOUT_ROWS[command].summary.partition(". ")[2]
