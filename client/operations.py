"""The table of everything people can do: each method of the door (client/backstop.py) with its place in the HTTP API.

The front makes its routes of it (web/), the command line its second door (client/http_door.py), and the table of rights
its keys. Types are named as text, `module:Name`, and looked up when a method is first used: a command imports what its
own answer needs, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

API = "/api/v1"


class Operation(NamedTuple):
    """A method. `path`: below /api/v1; names in braces are arguments, whole segments.

    `body`: the one argument that is the request's body; else the other arguments are its fields (POST) or the query
    (GET, all of them text). `command`: its key in the table of rights, `{command}` filled from the path.
    """

    method: str
    verb: str
    path: str
    answer: str
    command: str
    body: str = ""
    fields: tuple[str, ...] = ()
    """Arguments that are in neither the path nor the body."""
    in_query: tuple[str, ...] = ()
    """Fields of the body that may be in the query instead, because another program defines the body."""
    seconds: float = 60.0
    """The time limit for an answer, in seconds."""
    paged: bool = False
    """The answer is a list, which can be read in parts."""
    tagged: bool = False
    """The answer has an ETag."""
    watched: bool = False
    """`?watch` sends the answer again at each change."""
    question: str = ""
    """The kind of question that it asks the desk."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))

    @property
    def in_path(self) -> tuple[str, ...]:
        """The arguments that are parts of the path."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments, in the method's order."""
        return (*self.in_path, *([self.body] if self.body else []), *self.fields)

    @property
    def changes(self) -> bool:
        """Return whether the method changes something: a call may then be repeated under a key, and is done once."""
        return not self.command.startswith("read.")


_LAUNCH, _ROLLOUT, _FLEET = "models.rollout.messages", "models.rollout", "models.fleet"
_STATUS = f"{_ROLLOUT}.status_models:RolloutStatus"
_SUMMARIES = "list[models.reports.rollout_summary:RolloutSummary]"
_FLEET_STATUS, _FLEET_PLAN = f"{_FLEET}.messages:FleetStatus", f"{_FLEET}.messages:FleetPlan"
_OVERVIEWS = "list[models.status_questions:Overview]"
_REQUEST = "models.requests.state:RequestState"
_CHECK = "client.answer_models:Check"
_BRINGUP = "models.bringup.messages"
_PUSHED = "models.health_pushes:HealthPushed"


def _read(method: str, path: str, answer: str, *, verb: str = "GET", **more: Any) -> Operation:
    return Operation(method, verb, path, answer, f"read.{method}", **more)


def _post(method: str, path: str, answer: str, command: str, **more: Any) -> Operation:
    return Operation(method, "POST", path, answer, command, **more)


OPERATIONS: tuple[Operation, ...] = (
    _post("launch", "/rollouts", f"{_LAUNCH}:LaunchAnswer", "rollout.launch", body="request", seconds=180),
    _read("rollouts", "/rollouts", _SUMMARIES, paged=True),
    _read("overview", "/overview", _SUMMARIES, paged=True, tagged=True),
    _read("status", "/rollouts/{cluster}", _STATUS, tagged=True, watched=True),
    _post("command", "/rollouts/{cluster}/{command}", f"{_LAUNCH}:CommandAnswer", "rollout.{command}", body="request"),
    _read("could_act", "/rollouts/{cluster}/could-act", "list[str]"),
    _read("who_could", "/who-could", "list[str]", verb="POST", fields=("needs", "cluster", "subject")),
    _read("ahead", "/rollouts/{cluster}/ahead", f"{_ROLLOUT}.command_previews:Ahead"),
    _read("audit", "/rollouts/{cluster}/audit", "list[client.answer_models:AuditRecord]", seconds=180, paged=True),
    _read("health_at", "/rollouts/{cluster}/health-at", "datetime:datetime | None"),
    _read("lost", "/lost-rollouts", _OVERVIEWS, fields=("cluster",)),
    _read(
        "ask_rollouts",
        "/rollout-statuses",
        f"dict[str, {_STATUS} | None]",
        verb="POST",
        seconds=120,
        fields=("clusters", "seconds"),
    ),
    _post("launch_fleet", "/fleet", _FLEET_PLAN, "fleet.launch", body="request", seconds=1860),
    _read("fleet_status", "/fleet", _FLEET_STATUS, tagged=True, watched=True),
    _post(
        "fleet_command", "/fleet/{command}", f"{_FLEET}.messages:FleetCommandAnswer", "fleet.{command}", body="request"
    ),
    _read("fleet_plan", "/fleet/plan", _FLEET_PLAN),
    _read("open_fleet", "/fleet/open", f"{_FLEET_STATUS} | None"),
    _read("lost_fleet", "/fleet/lost", f"{_FLEET}.archived_state:KeptFleet | None"),
    _post("request", "/requests", _REQUEST, "request.ask", body="ask", seconds=180),
    _post("decide_request", "/requests/{request}/{command}", _REQUEST, "request.{command}", body="order"),
    _read("open_requests", "/requests", f"list[{_REQUEST}]", paged=True, fields=("cluster",)),
    _post("bring_up", "/bringups", f"{_BRINGUP}:BringupAnswer", "bringup.add", body="start", seconds=180),
    _read("bringup_status", "/bringups/{cluster}", "models.bringup.status:BringupStatus", tagged=True, watched=True),
    _post(
        "bringup_command",
        "/bringups/{cluster}/{command}",
        f"{_BRINGUP}:BringupCommandAnswer",
        "bringup.{command}",
        body="order",
    ),
    _post(
        "give_up_bringup",
        "/lost-bringups/{cluster}/give-up",
        f"{_BRINGUP}:BringupRow",
        "desk.give_up_bringup",
        fields=("reason",),
    ),
    _post("push_health", "/health", _PUSHED, "desk.push_health", body="request"),
    _post("push_alerts", "/alertmanager", _PUSHED, "desk.push_health", body="request", in_query=("label",)),
    _post(
        "countersign",
        "/waiting/{digest}/countersign",
        "models.access.second_persons:Countersigned",
        "countersign.give",
        seconds=240,
    ),
    _read("doctor", "/doctor", f"list[{_CHECK}]", seconds=240),
    _read("watch", "/watch", _CHECK),
    _read("unserved", "/unserved", "bool"),
    _read("builds", "/builds", "list[client.answer_models:Build]"),
    _post("use_build", "/builds/{build}/use", "str", "builds.use"),
)
"""Every method that is one call."""

COMPOSED = (
    *("clusters", "clusters_named", "clusters_with_stage", "describe_clusters", "senseless", "plannable"),
    *("snapshot", "flex", "calendar", "tallies", "past", "read_archive", "import_fleet", "take_fleet", "fleet_pages"),
    *("add_health", "add_jobs"),
)
"""Methods of client/composed.py, each made of several calls: one request could not hold everything."""
_THEIR_OWN = ("_pages", "_describe_clusters", "_now")
"""Helpers that those methods share."""

INNER = frozenset({"archive", "token_of", "ended_sessions", "aim", "keep_waiting", "turn_waiting", "tell_emergency"})
"""Questions that only the door and the front ask: people write into the archive only by giving commands."""


def composed_method(door: Any, name: str) -> Any:
    """Return a method of `client.composed.Composed` for this door, which has `ask`. None: it has no such method."""
    if name not in COMPOSED and name not in _THEIR_OWN:
        return None
    from client.composed import Composed

    return vars(Composed)[name].__get__(door)


@cache
def by_method() -> Mapping[str, Operation]:
    return {operation.method: operation for operation in OPERATIONS}


def questions() -> Iterator[Operation]:
    """Yield one operation for each question to the ledger's desk that is asked from outside."""
    from models.questions import QUESTIONS

    for kind in QUESTIONS:
        if kind not in INNER:
            yield Operation("ask", "POST", f"/questions/{kind}", "", f"desk.{kind}", seconds=330, question=kind)


@cache
def by_question() -> Mapping[str, Operation]:
    """Return the questions to the desk that are asked from outside, by their kinds."""
    return {operation.question: operation for operation in questions()}


_NAMED = re.compile(r"([\w.]+):(\w+)")


@cache
def type_of(answer: str) -> Any:
    """Return the type that this text names. The texts are this table's own, never a caller's."""
    names: dict[str, Any] = {"list": list, "dict": dict, "str": str, "bool": bool}

    def import_type(match: re.Match[str]) -> str:
        names[match[2]] = getattr(import_module(match[1]), match[2])
        return match[2]

    return eval(_NAMED.sub(import_type, answer), {"__builtins__": {}}, names)  # noqa: S307
