"""Renders a notice in plain words: (subject, body). Pure: the same notice always gives the same text.

Templates are activities/templates/<kind>.txt; the first line of a rendered template is the subject. The text depends on
the notice's numbers: `after_gpus` is the quota it is about, `before_gpus` the one that it replaces (for a rollback: the
value that is undone), and `reasons` are the plan's. Some kinds say more if `facts` holds one of these
(docs/notices.md):

    until           how long a shortage is expected to last (at_risk)
    left            what is left to undo or to wait for: texts (stuck, held, breach)
    commands        commands that can be given (the same kinds)
    goes_on         when it goes on by itself, in words (held)
    recovers        how long health must be good to end the hold of a breach, in words (held)
    goes_back       whether the quotas are set back at once (breach)
    breach          whether it was a breach that rolled back (rolled_back, to the owner)
    late            whether it is an objection that came too late to hold anything (held)
    ends            whether the rollout has ended, so that nothing can be answered (all)
    to_owner        whether the audience is the rollout's owner, if the names do not say it

A notice among others (entry.txt) begins with the time when it was posted, and its numbers are of that time; `past` is
set if a later one has superseded it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from models.notice_digests import Letter, is_urgent, still_asks, subject_of, superseded_keys
from models.notices import Notice, NoticeKind
from models.rollout.stages import Stage, command_line
from models.texts import gpus_text

_SAYS_WHAT_TO_DO = frozenset(
    {
        NoticeKind.HELD,
        NoticeKind.STUCK,
        NoticeKind.BREACH,
        NoticeKind.ROLLED_BACK,
        NoticeKind.REQUEST,
        NoticeKind.FLEET_HELD,
        NoticeKind.BRINGUP,
        NoticeKind.EMERGENCY,
    }
)
_CUTS = frozenset(
    {NoticeKind.PLANNED, NoticeKind.CHANGED, NoticeKind.BUFFERED, NoticeKind.ENFORCED, NoticeKind.ROLLED_BACK}
)
TO_OWNER = frozenset(
    {NoticeKind.STUCK, NoticeKind.HELD, NoticeKind.FLEET_HELD, NoticeKind.BRINGUP, NoticeKind.EMERGENCY}
)
"""Kinds that go only to the owner; a breach goes to the owner and to teams."""

# Not strftime: its names follow the locale of the machine.
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def render(notice: Notice, written_at: datetime | None = None, console: str = "") -> tuple[str, str]:
    """Return subject (one line) and body (plain text) of a notice. `written_at`: its time, if that is long ago.

    `console`: the console's address; empty: there is none to link to.
    Errors: jinja2.UndefinedError if a template names a field that a notice does not have: our bug.
    """
    words = {**_words(notice), "written_at": written_at, "page": page_for(notice, console)}
    return _split(_templates().get_template(f"{notice.kind.value}.txt").render(words))


def page_for(notice: Notice, console: str) -> str:
    """Return the address of the page where its reader can see and answer it; empty: no page is about it."""
    if not console or notice.kind is NoticeKind.BRINGUP:
        return ""
    match notice.kind:
        case NoticeKind.REQUEST:
            path = f"requests/{quote(subject_of(notice).rpartition('/')[2], safe='')}"
        case NoticeKind.FLEET_HELD:
            path = "rollout"
        case NoticeKind.EMERGENCY:
            path = "access"
        case _ if goes_to_owner(notice):
            path = f"clusters/{quote(notice.cluster, safe='')}"
        case _:
            path = f"teams/{quote(notice.audience, safe='')}?cluster={quote(notice.cluster, safe='')}"
    return f"{console.rstrip('/')}/{path}"


def _split(text: str) -> tuple[str, str]:
    subject, _, body = text.partition("\n")
    lines = "\n".join(line.rstrip() for line in body.splitlines())
    return _one_line(subject), re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"


def render_together(message: Letter, console: str = "") -> tuple[str, str]:
    """Return subject and body of several notices to one audience: those that want an answer come first.

    `console`: its address; empty: there is none to link to. The log has each notice whole.
    """
    notices = message.notices
    asking, past = still_asks(notices), superseded_keys(notices)
    entries = [
        _entry(notice, message.posted_at[notice.key], asks=notice.key in asking, past=notice.key in past)
        for notice in sorted(notices, key=lambda n: (n.cluster, notices.index(n)))
    ]
    urgent = sorted((n for n in notices if is_urgent(n)), key=lambda n: n.key in past)
    text = (
        _templates()
        .get_template("digest.txt")
        .render(
            audience=notices[0].audience,
            count=len(notices),
            first=render(urgent[0])[0] if urgent else "",
            urgent=[entry for entry in entries if entry["urgent"]],
            asked=[e for e in entries if e["key"] in asking and not e["urgent"]],
            told=[e for e in entries if e["key"] not in asking and not e["urgent"]],
            teams=any(e["key"] in asking and not e["to_owner"] for e in entries),
            cuts=any(e["cut"] and e["kind"] in _CUTS and not e["past"] for e in entries),
            owners=sorted({_one_line(n.owner) for n in notices} - {notices[0].audience}),
            link=console,
        )
    )
    return _split(text)


def _entry(notice: Notice, posted_at: datetime, *, asks: bool, past: bool) -> dict[str, Any]:
    """Return one notice among others: the line that is its subject elsewhere, and its other lines."""
    words = {**_words(notice), "asks": asks, "past": past}
    words["says_what_to_do"] = notice.kind in _SAYS_WHAT_TO_DO and not past
    body = _templates().get_template("entry.txt").render(words)
    subject, _ = _split(_templates().get_template(f"{notice.kind.value}.txt").render(words))
    return {
        **words,
        "says": f"{_hour(posted_at)}: {subject}",
        "more": [line.strip() for line in body.splitlines() if line.strip()],
        "urgent": is_urgent(notice),
    }


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("activities", "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - plain text, never HTML
        auto_reload=False,  # they change with the program
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"gpus": gpus_text, "day": _day, "moment": _moment, "shell": shlex.quote}
    return environment


def goes_to_owner(notice: Notice) -> bool:
    """Return whether its reader answers for the rollout, and not for a team."""
    return bool(notice.facts.get("to_owner", notice.kind in TO_OWNER or notice.audience == notice.owner))


def _words(notice: Notice) -> dict[str, Any]:
    """Return everything a template may name."""
    before, after, backing, facts = notice.before_gpus, notice.after_gpus, notice.backing_gpus, notice.facts
    change = None if before is None or after is None else after - before
    quota = before if after is None else after
    to_owner = goes_to_owner(notice)
    return {
        **{name: getattr(notice, name) for name in Notice.model_fields},
        "owner": _one_line(notice.owner),
        "reasons": [_one_line(reason) for reason in notice.reasons],
        "detail": notice.detail.strip(),
        "change": change,
        "cut": max(0, -(change or 0)),
        "quota": quota,
        "missing_gpus": 0 if quota is None or backing is None else max(0, quota - backing),
        "to_owner": to_owner,
        "past": False,
        "written_at": None,
        "page": "",
        "applied": notice.stage not in ("", Stage.PLANNED),
        "ends": bool(facts.get("ends")),
        "late": bool(facts.get("late")),
        "goes_back": bool(facts.get("goes_back")),
        "breach": bool(facts.get("breach")),
        "goes_on": str(facts.get("goes_on", "")),
        "recovers": str(facts.get("recovers", "")),
        "left": _texts(facts, "left"),
        "commands": _commands(notice),
        "until": datetime.fromisoformat(str(until)) if (until := facts.get("until")) else None,
    }


def _commands(notice: Notice) -> list[dict[str, str]]:
    """Return the commands that the rollout would take, as lines to type; without any, the one that lists them."""
    if commands := notice.facts.get("commands"):
        return [_command(each) for each in (commands if isinstance(commands, list | tuple) else [commands])]
    if notice.kind is NoticeKind.BRINGUP:  # its template says how to look at it
        return []
    status = "backstop fleet status" if notice.kind is NoticeKind.FLEET_HELD else command_line("status", notice.cluster)
    held = notice.kind in (NoticeKind.HELD, NoticeKind.FLEET_HELD, NoticeKind.STUCK)
    return [
        {
            "does": f"See {'what holds the rollout' if held else 'the present state'}, and what you can do",
            "line": status,
        }
    ]


def _command(fact: Any) -> dict[str, str]:
    """Return a command of a fact: a line to type, or that with its effect."""
    if not isinstance(fact, Mapping):
        return {"does": "", "line": _one_line(str(fact))}
    return {name: _one_line(str(fact.get(name, ""))) for name in ("does", "line")}


def _texts(facts: Mapping[str, Any], name: str) -> list[str]:
    value = facts.get(name) or []
    items = value if isinstance(value, list | tuple) else [value]
    return [_one_line(str(item)) for item in items]


def _one_line(text: str) -> str:
    """Put free text of people in one line, so that it cannot break a subject, a list or a mail header."""
    return " ".join(text.split())


def _utc(time: datetime) -> datetime:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)


def _day(time: datetime) -> str:
    at = _utc(time)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def _hour(time: datetime) -> str:
    """Return a time of the last days, without the year."""
    at = _utc(time)
    return f"{at.day} {_MONTHS[at.month - 1]}, {at:%H:%M} UTC"


def _moment(time: datetime) -> str:
    at = _utc(time)
    return f"{_DAYS[at.weekday()]} {_day(at)}, {at:%H:%M} UTC"
