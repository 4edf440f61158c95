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
    """One method. `path`: below /api/v1; names in braces are arguments, whole segments.

    `body`: the one argument that is the request's body; else the other arguments are its fields (POST) or the query
    (GET, all of them text). `command`: its key in the table of rights, `{command}` filled from the path.
    """

    method: str
    verb: str
    path: str
    answer: str
    command: str
    summary: str
    body: str = ""
    fields: tuple[str, ...] = ()
    """Arguments that are neither in the path nor the body."""
    in_query: tuple[str, ...] = ()
    """Fields of the body that may stand in the query: whoever sends it speaks no language of ours."""
    seconds: float = 60.0
    """How long an answer may take."""
    paged: bool = False
    """A list, of which parts can be asked for."""
    tagged: bool = False
    """It has an ETag."""
    watched: bool = False
    """With `?watch` it is told whenever it changes."""
    question: str = ""
    """Of the ledger's desk: its kind."""

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
_OVERVIEWS = "list[models.questions:Overview]"
_REQUEST = "models.requests.state:RequestState"
_CHECK = "client.answer_models:Check"
_BRINGUP = "models.bringup.messages"
_PUSHES = "models.health_pushes"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "launch",
        "POST",
        "/rollouts",
        f"{_LAUNCH}:LaunchAnswer",
        "rollout.launch",
        "Open a rollout: plan it and wait for an approval.",
        body="request",
        seconds=180,
    ),
    Operation(
        "rollouts", "GET", "/rollouts", _SUMMARIES, "read.rollouts", "The newest rollout of each cluster.", paged=True
    ),
    Operation(
        "overview",
        "GET",
        "/overview",
        _SUMMARIES,
        "read.overview",
        "The newest rollout of each cluster, and what each open one needs from a person.",
        paged=True,
        tagged=True,
    ),
    Operation(
        "status",
        "GET",
        "/rollouts/{cluster}",
        _STATUS,
        "read.status",
        "Where a rollout stands, in full.",
        tagged=True,
        watched=True,
    ),
    Operation(
        "command",
        "POST",
        "/rollouts/{cluster}/{command}",
        f"{_LAUNCH}:CommandAnswer",
        "rollout.{command}",
        "Give a rollout a command.",
        body="request",
    ),
    Operation(
        "could_act",
        "GET",
        "/rollouts/{cluster}/could-act",
        "list[str]",
        "read.could_act",
        "The people who could do what a rollout needs from a person.",
    ),
    Operation(
        "who_could",
        "POST",
        "/who-could",
        "list[str]",
        "read.who_could",
        "The people who could do what a status needs from a person.",
        fields=("needs", "cluster", "subject"),
    ),
    Operation(
        "ahead",
        "GET",
        "/rollouts/{cluster}/ahead",
        f"{_ROLLOUT}.command_previews:Ahead",
        "read.ahead",
        "What commands would lead to.",
    ),
    Operation(
        "audit",
        "GET",
        "/rollouts/{cluster}/audit",
        "list[client.answer_models:AuditRecord]",
        "read.audit",
        "What happened to a cluster, as the workflow history has it.",
        seconds=180,
        paged=True,
    ),
    Operation(
        "health_at",
        "GET",
        "/rollouts/{cluster}/health-at",
        "datetime:datetime | None",
        "read.health_at",
        "The time of the cluster's latest health sample in the ledger.",
    ),
    Operation(
        "lost",
        "GET",
        "/lost-rollouts",
        _OVERVIEWS,
        "read.lost",
        "Rollouts that the ledger has open and Temporal does not run.",
        fields=("cluster",),
    ),
    Operation(
        "ask_rollouts",
        "POST",
        "/rollout-statuses",
        f"dict[str, {_STATUS} | None]",
        "read.ask_rollouts",
        "The status of several rollouts; null for each that does not answer in so many seconds.",
        seconds=120,
        fields=("clusters", "seconds"),
    ),
    Operation(
        "launch_fleet",
        "POST",
        "/fleet",
        _FLEET_PLAN,
        "fleet.launch",
        "Open a fleet rollout: plan it and wait for an approval.",
        body="request",
        seconds=1860,
    ),
    Operation(
        "fleet_status",
        "GET",
        "/fleet",
        _FLEET_STATUS,
        "read.fleet_status",
        "Where the fleet rollout stands.",
        tagged=True,
        watched=True,
    ),
    Operation(
        "fleet_command",
        "POST",
        "/fleet/{command}",
        f"{_FLEET}.messages:FleetCommandAnswer",
        "fleet.{command}",
        "Give the fleet rollout a command.",
        body="request",
    ),
    Operation("fleet_plan", "GET", "/fleet/plan", _FLEET_PLAN, "read.fleet_plan", "The plan that awaits an approval."),
    Operation(
        "open_fleet",
        "GET",
        "/fleet/open",
        f"{_FLEET_STATUS} | None",
        "read.open_fleet",
        "The open fleet rollout; null if there is none.",
    ),
    Operation(
        "lost_fleet",
        "GET",
        "/fleet/lost",
        f"{_FLEET}.archived_state:KeptFleet | None",
        "read.lost_fleet",
        "The fleet rollout that the ledger has open and Temporal does not run.",
    ),
    Operation(
        "request",
        "POST",
        "/requests",
        _REQUEST,
        "request.ask",
        "Ask for more quota.",
        body="ask",
        seconds=180,
    ),
    Operation(
        "decide_request",
        "POST",
        "/requests/{request}/{command}",
        _REQUEST,
        "request.{command}",
        "Give a command to a request.",
        body="order",
    ),
    Operation(
        "open_requests",
        "GET",
        "/requests",
        f"list[{_REQUEST}]",
        "read.open_requests",
        "Requests that wait for an answer, and grants that have an end.",
        paged=True,
        fields=("cluster",),
    ),
    Operation(
        "bring_up",
        "POST",
        "/bringups",
        f"{_BRINGUP}:BringupAnswer",
        "bringup.add",
        "Enter a cluster for bring-up.",
        body="start",
        seconds=180,
    ),
    Operation(
        "bringup_status",
        "GET",
        "/bringups/{cluster}",
        "models.bringup.status:BringupStatus",
        "read.bringup_status",
        "Where a bring-up stands, in full.",
        tagged=True,
        watched=True,
    ),
    Operation(
        "bringup_command",
        "POST",
        "/bringups/{cluster}/{command}",
        f"{_BRINGUP}:BringupCommandAnswer",
        "bringup.{command}",
        "Give a command to a bring-up.",
        body="order",
    ),
    Operation(
        "give_up_bringup",
        "POST",
        "/lost-bringups/{cluster}/give-up",
        f"{_BRINGUP}:BringupRow",
        "desk.give_up_bringup",
        "End a bring-up that Temporal has lost, in the ledger only.",
        fields=("reason",),
    ),
    Operation(
        "push_health",
        "POST",
        "/health",
        f"{_PUSHES}:HealthPushed",
        "desk.push_health",
        "Have the watch look at clusters now. It reads their health itself, and ignores the health in the request.",
        body="request",
    ),
    Operation(
        "push_alerts",
        "POST",
        "/alertmanager",
        f"{_PUSHES}:HealthPushed",
        "desk.push_health",
        "The same, for Alertmanager's webhook. `label`: the alerts' label that names the cluster.",
        body="request",
        in_query=("label",),
    ),
    Operation(
        "countersign",
        "POST",
        "/waiting/{digest}/countersign",
        "models.access.second_persons:Countersigned",
        "countersign.give",
        "Countersign, as the second person, a command of somebody else.",
        seconds=240,
    ),
    Operation(
        "doctor",
        "GET",
        "/doctor",
        f"list[{_CHECK}]",
        "read.doctor",
        "Each check of the installation: what works and what does not.",
        seconds=240,
    ),
    Operation("watch", "GET", "/watch", _CHECK, "read.watch", "Whether the shared watch is alive."),
    Operation(
        "unserved", "GET", "/unserved", "bool", "read.unserved", "True if it is known that no worker is running."
    ),
    Operation(
        "builds", "GET", "/builds", "list[client.answer_models:Build]", "read.builds", "Builds of versioned workers."
    ),
    Operation(
        "use_build", "POST", "/builds/{build}/use", "str", "builds.use", "Bring a build of the worker into service."
    ),
)
"""Every method that is a call of its own."""

COMPOSED = (
    *("clusters", "clusters_named", "clusters_with_stage", "described", "senseless", "plannable", "snapshots"),
    *("snapshot", "flex", "calendar", "tallies", "past", "archived", "import_fleet", "take_fleet", "fleet_pages"),
    *("add_health", "add_jobs"),
)
"""Methods that are made of questions, each a call by itself (client/composed.py): in parts that a request can hold."""
_THEIR_OWN = ("_pages", "_described", "_now")
"""What those methods call of each other's."""

INNER = frozenset({"archive", "token_of", "ended_sessions", "aim", "keep_waiting", "turn_waiting", "tell_emergency"})
"""Questions that only the door and the front ask: what people say goes into the archive by what they do."""


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

    for kind, question in QUESTIONS.items():
        if kind in INNER:
            continue
        first = (question.__doc__ or "").strip().splitlines()[0].partition(" Errors:")[0]
        yield Operation(
            "ask",
            "POST",
            f"/questions/{kind}",
            "",
            f"desk.{kind}",
            first,
            seconds=330,
            question=kind,
        )


@cache
def by_question() -> Mapping[str, Operation]:
    """Return the questions to the desk that are asked from outside, by their kinds."""
    return {operation.question: operation for operation in questions()}


_NAMED = re.compile(r"([\w.]+):(\w+)")


@cache
def type_of(answer: str) -> Any:
    """Return the type that this text names. The texts are this table's own, never a caller's."""
    names: dict[str, Any] = {"list": list, "dict": dict, "str": str, "bool": bool}

    def named(match: re.Match[str]) -> str:
        names[match[2]] = getattr(import_module(match[1]), match[2])
        return match[2]

    return eval(_NAMED.sub(named, answer), {"__builtins__": {}}, names)  # noqa: S307
