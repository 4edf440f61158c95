"""The tools of agents: each is one question to the door of the command line, answered with the same JSON.

Lists are cut to a length that an agent can read, and say how many items there are. Errors are the sentences of
models.errors.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from cli.agents.read_only import ReadingDoor
from cli.json_answers_plan import PlanAnswer
from models.base import Model, in_one_sentence
from models.errors import BadInput
from models.flex.division import FlexMode
from models.planning.plan import make_plan
from models.questions import WhyNot
from models.reports.rollout_summary import RolloutSummary
from models.requests.state import QuotaAsk
from models.status_questions import RequestsOf

MOST_ROWS = 100

ToolAnswer = dict[str, Any]
ToolCall = Callable[..., Awaitable[ToolAnswer]]
NamedCluster = Annotated[str, Field(min_length=1, max_length=200, description="The cluster's name.")]
OrAll = Annotated[str, Field(max_length=200, description="The cluster's name; empty: all clusters.")]
NamedTeam = Annotated[str, Field(min_length=1, max_length=200, description="The team whose quota it is.")]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS, description="The most items to return.")]
WantedGpus = Annotated[int, Field(ge=1, le=10_000_000, description="Whole GPUs.")]


class Tool(NamedTuple):
    """A tool. `commands`: the keys, in the table of rights, of everything that it asks the door for."""

    call: ToolCall
    commands: tuple[str, ...]
    summary: str

    @property
    def name(self) -> str:
        return self.call.__name__


async def fleet_overview(door: ReadingDoor, needs_a_person: bool = False, rows: Rows = 50) -> ToolAnswer:
    rollouts: list[RolloutSummary] = await door.overview()
    chosen = [one for one in rollouts if one.needs or not needs_a_person]
    chosen.sort(key=lambda one: (not one.needs, one.cluster))
    return _list_answer("rollouts", chosen, rows)


async def cluster_status(door: ReadingDoor, cluster: NamedCluster) -> ToolAnswer:
    return _json(await door.status(cluster))


async def why(
    door: ReadingDoor,
    team: NamedTeam,
    cluster: OrAll = "",
    gpus: WantedGpus | None = None,
    in_one_block: Annotated[
        bool, Field(description="Whether the GPUs must be one contiguous block in one island.")
    ] = False,
) -> ToolAnswer:
    answers = await door.ask(WhyNot(team=team, cluster=cluster, gpus=gpus, block=in_one_block))
    if not answers.teams:
        raise BadInput(
            "; ".join(answers.unanswered.values()) or f"no cluster in the ledger has a quota of team {team!r}"
        )
    return _json(answers)


async def flex(door: ReadingDoor, cluster: OrAll = "", rows: Rows = 50) -> ToolAnswer:
    return _list_answer("clusters", await door.flex(cluster, FlexMode.EQUAL), rows)


async def calendar(door: ReadingDoor, cluster: OrAll = "", rows: Rows = 50) -> ToolAnswer:
    return _list_answer("windows", await door.calendar(cluster), rows)


async def requests(door: ReadingDoor, cluster: OrAll = "", ended: bool = False, rows: Rows = 50) -> ToolAnswer:
    return _list_answer("requests", (await door.ask(RequestsOf(cluster=cluster, ended=ended)))[::-1], rows)


async def plan(door: ReadingDoor, cluster: NamedCluster) -> ToolAnswer:
    snapshot, policy = await door.snapshot(cluster)
    document: ToolAnswer = PlanAnswer.of(make_plan(snapshot, policy)).as_json()
    return document


async def propose_quota(
    door: ReadingDoor,
    actor: str,
    team: NamedTeam,
    cluster: NamedCluster,
    gpus: WantedGpus,
    reason: Annotated[
        str, Field(min_length=1, max_length=2000, description="The reason, for the person who decides on the request.")
    ],
    days: Annotated[int, Field(ge=1, le=366, description="Days after which Backstop takes the GPUs back.")] = 7,
) -> ToolAnswer:
    if not reason.strip():
        raise BadInput("a request needs a reason for the person who decides on it")
    try:
        ask = QuotaAsk(
            request=f"q-{secrets.token_hex(4)}",
            team=team,
            cluster=cluster,
            gpus=gpus,
            until=datetime.now(UTC) + timedelta(days=days),
            actor=actor,
            reason=reason,
        )
    except ValidationError as error:
        raise BadInput(in_one_sentence(error)) from None
    return _json(await door.request(ask))


TOOLS = (
    Tool(
        fleet_overview,
        ("read.overview",),
        "Every open rollout: its stage, and what it needs from a person. Those that need a person come first.",
    ),
    Tool(cluster_status, ("read.status",), "The full status of a cluster's rollout: gates, holds, health, quota."),
    Tool(
        why,
        ("desk.why",),
        "Why a team cannot use its quota: how many GPUs its jobs could get now, and each reason why not the rest, "
        "with its number of GPUs.",
    ),
    Tool(flex, ("desk.flex",), "Flex by cluster: healthy GPUs that no quota promises or that a quota leaves unused."),
    Tool(calendar, ("desk.calendar",), "Declared maintenance, incidents and freezes that are not over."),
    Tool(requests, ("desk.requests",), "Requests for more quota, the newest first, each with its outcome so far."),
    Tool(
        plan,
        ("desk.snapshot",),
        "What a rollout would do to a cluster now: how many GPUs it would cut from which team, and why.",
    ),
    Tool(
        propose_quota,
        ("request.ask",),
        "Ask for more quota for a team. Nothing changes until a person approves the request.",
    ),
)


def _json(answer: Model) -> ToolAnswer:
    document: ToolAnswer = answer.model_dump(mode="json", by_alias=True)
    return document


def _list_answer(name: str, models: Iterable[Model], rows: int) -> ToolAnswer:
    every = list(models)
    return {"of": len(every), name: [_json(one) for one in every[:rows]]}
