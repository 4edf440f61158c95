"""Everything that may be sent to a workflow, spoilt, through the converter that a worker reads it with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.adapters.ledger.facade import Ledger
from benchmarks.console_fleet import desk_on
from client.converter import FROM_OUTSIDE, data_converter, name_of
from models.base import Model
from models.fleet import commands as fleet_commands
from models.fleet import reducers as fleet_outcomes
from models.fleet.commands import FLEET_COMMANDS, FleetCommandRequest
from models.fleet.messages import FleetInput
from models.fleet.state import FleetRollout
from models.planning.grants import GrantOrder
from models.question_base import DeskAnswer
from models.questions import DeskRequest
from models.requests import commands as request_commands
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.messages import RequestInput
from models.requests.reducers import open_request as asked_for
from models.requests.state import Assessment, QuotaAsk, RequestState
from models.rollout import granting
from models.rollout.commands import CommandRequest, obey, refusal
from models.rollout.effects import EffectKind, Fence
from models.rollout.messages import HealthChanged, RolloutInput
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout
from models.rollout.status import status_of
from models.temporal_names import WatchInput
from tests.integration.ledger.world import ForeignTool, fleet, import_fleet
from tests.mangling import spoilt
from tests.property.test_edge_files import assert_a_sentence, dump
from tests.tried import TRIED, examples
from tests.unit.pure_world import World

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FUZZ = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
CONVERTER = data_converter.payload_converter
COMMAND = {"actor": "tpm", "reason": "r", "plan_hash": "abc", "team": "a", "hold": "drift", "how": "accept"}
LAUNCH = {
    "launch": {
        "cluster": "alpha",
        "rollout": "alpha/1",
        "owner": "tpm",
        "actor": "tpm",
        "reason": "r",
        "shadow": False,
        "adopt": False,
        "policy": {"buffer": 0.1, "notice": "1d"},
    },
    "state": None,
    "runs": 1,
}
FLEET = {
    "launch": {
        "fleet": "fleet/1",
        "owner": "tpm",
        "reason": "r",
        "pilots": ["alpha"],
        "waves": ["busy"],
        "pace": {"parallel": 3, "bake": "1d", "max_failed": "0.1"},
        "policy": {"buffer": 0.1},
    },
    "state": None,
}
FLEET_COMMAND = {"actor": "tpm", "reason": "r", "plan_hash": "abc", "clusters": ["a"], "wave": "idle", "undo": True}
ISLAND = {"name": "X", "total_gpus": 200, "healthy_gpus": 180, "block_gpus": None}
SAMPLE = {"cluster": "alpha", "at": "2026-03-01T12:00:00Z", "islands": [ISLAND]}
ENTRY: dict[str, Any] = {
    "key": "k",
    "cluster": "alpha",
    "rollout": "r",
    "at": "2026-03-01T12:00:00Z",
    "kind": "command",
}
ENTRY |= {"actor": "a", "text": "t", "reason": "r", "refused": True, "data": {"a": 1}}
DESK: tuple[dict[str, Any], ...] = (
    {"kind": "stage_import", "actor": "tpm", "arguments": {"import_id": "i", "part": 0}, "payload": "aGVsbG8="},
    {"kind": "commit_import", "actor": "tpm", "arguments": {"import_id": "i", "parts": 1}},
    {"kind": "add_health", "actor": "tpm", "arguments": {"samples": [SAMPLE]}},
    {"kind": "clusters", "arguments": {"after": "", "limit": 5}},
    {"kind": "teams"},
    {"kind": "facts", "arguments": {"cluster": "alpha"}},
    {"kind": "snapshot", "arguments": {"cluster": "alpha"}},
    {"kind": "snapshots", "arguments": {"after": "", "limit": 5}},
    {"kind": "archive", "arguments": {"entries": [ENTRY]}},
    {"kind": "archived", "arguments": {"cluster": "alpha", "after": 0, "limit": 5}},
    {"kind": "tallies", "arguments": {"cluster": "alpha", "times": ["2026-03-01T12:00:00Z"], "within_seconds": 3600}},
    {
        "kind": "week",
        "arguments": {
            "since": "2026-02-22T12:00:00Z",
            "until": "2026-03-01T12:00:00Z",
            "times": ["2026-03-01T12:00:00Z"],
            "within_seconds": 3600,
        },
    },
    {"kind": "milestones", "actor": "tpm"},
    {
        "kind": "plan_milestones",
        "actor": "tpm",
        "arguments": {"milestones": [{"name": "m", "measure": "users trained", "target": 5, "due": "2026-12-04"}]},
    },
    {"kind": "note_milestone", "actor": "tpm", "arguments": {"milestone": "m", "number": 3, "reason": "x"}},
    {"kind": "doctor", "actor": "tpm"},
)
ASK = {"request": "q-1", "team": "a", "cluster": "alpha", "gpus": 8, "actor": "dev", "reason": "a deadline"}
VALID: dict[type[Model], tuple[Any, ...]] = {
    CommandRequest: (COMMAND, {"actor": "tpm"}),
    RolloutInput: (LAUNCH,),
    HealthChanged: ({"cluster": "alpha", "at": "2026-03-01T12:00:00Z", "why": "short"},),
    DeskRequest: DESK,
    WatchInput: ({"interval_seconds": 15.0, "runs": 3},),
    FleetInput: (FLEET,),
    FleetCommandRequest: (FLEET_COMMAND, {"actor": "tpm"}),
    RequestInput: ({"ask": ASK}, {"ask": {**ASK, "until": "2030-01-01T00:00:00Z", "namespace": "lab"}}),
    RequestOrder: ({"actor": "capacity", "reason": "agreed"},),
    GrantOrder: ({"request": "q-1", "team": "a", "gpus": 8, "raised": {"a": 8, "org": 3}, "actor": "capacity"},),
}


@st.composite
def payloads(draw: st.DrawFn, documents: tuple[Any, ...], most: int = 2) -> Payload:
    """A payload that an untyped client sends: mostly JSON that is nearly right."""
    document = draw(st.sampled_from(documents))
    made = draw(spoilt(document, most)) if draw(st.integers(0, 7)) else document
    raw = json.dumps(made).encode()
    if draw(st.integers(0, 11)) == 0:
        raw = draw(st.binary(max_size=60) | st.just(raw[: draw(st.integers(0, len(raw)))]))
    encoding = draw(st.sampled_from([b"json/plain"] * 14 + [b"binary/null", b"binary/plain", b"json/protobuf", b"x"]))
    return Payload(metadata={"encoding": encoding}, data=raw)


def decoded(model: type[Model], payload: Payload) -> Any:
    """The model, or None if it was refused as a worker refuses it: in one sentence that can be sent."""
    refusal: ApplicationError | None = None
    value: Any = None
    try:
        (value,) = CONVERTER.from_payloads([payload], [model])
    except ApplicationError as refused:
        refusal = refused
    TRIED["payloads"] += 1
    if refusal is not None:
        assert (refusal.type, refusal.__cause__) == ("BadInput", None)
        assert_a_sentence(refusal.message)
        TRIED["payloads that were refused"] += 1
        return None
    assert isinstance(value, model)
    (again,) = CONVERTER.from_payloads(CONVERTER.to_payloads([value]), [model])
    assert again.model_dump_json() == value.model_dump_json()  # not the values: no NaN equals another
    return value


@settings(FUZZ, max_examples=examples(400))
@given(data=st.data())
def test_a_payload_is_read_or_refused_in_one_sentence(data: st.DataObject) -> None:
    model: type[Model] = data.draw(st.sampled_from(tuple(VALID)))
    assert {name_of(model) for model in VALID} == FROM_OUTSIDE
    found = decoded(model, data.draw(payloads(VALID[model])))
    if isinstance(found, RolloutInput):
        # What it is made of later, where a refusal would fail a rollout that is under way.
        Fence(rollout=found.launch.rollout, counter=1)
    if isinstance(found, FleetInput) and found.state is None:
        fleet = fleet_outcomes.open_fleet(found.launch, NOON)
        assert FleetRollout.model_validate_json(fleet.model_dump_json()) == fleet
    if isinstance(found, RequestInput):
        asked = asked_for(found.ask, Assessment(fits=True, owners=("capacity",)), NOON)
        assert RequestState.model_validate_json(asked.model_dump_json()) == asked
    if isinstance(found, RequestOrder):
        asked = asked_for(QuotaAsk.model_validate(ASK), Assessment(fits=True, owners=("capacity",)), NOON)
        for what in RequestCommand:
            if request_commands.refusal(asked, what, found, ("capacity",)) is None:
                request_commands.obey(asked, what, found, NOON)
    if isinstance(found, GrantOrder):
        watched = _watched()
        watched.r = granting.take_order(watched.r, found)
        watched.run()
        assert watched.stage is Stage.MONITORED
    if isinstance(found, FleetCommandRequest):
        fleet = fleet_outcomes.open_fleet(FleetInput.model_validate(FLEET).launch, NOON)
        for command in FLEET_COMMANDS:
            if fleet_commands.refusal(fleet, command, found) is None:
                fleet_commands.obey(fleet, command, found, NOON)


def _watched() -> World:
    world = World(notice="0s", soak_buffered="0s", soak_enforced="0s").start()
    world.until(Stage.MONITORED)
    return world


def rollouts() -> tuple[Rollout, ...]:
    """A rollout in each stage that asks different things of a command."""
    waits = World()
    waits.run()
    watched, stuck = (World(notice="0s", soak_buffered="0s", soak_enforced="0s").start() for _ in range(2))
    for world in (watched, stuck):
        world.until(Stage.MONITORED)
    stuck.fail(EffectKind.RESTORE, "Refusal")
    stuck.say(Command.ABORT)
    found = (waits.r, watched.r, stuck.r)
    assert [r.stage for r in found] == [Stage.PLANNED, Stage.MONITORED, Stage.STUCK]
    return found


ROLLOUTS = rollouts()


@settings(FUZZ, max_examples=examples(150))
@given(
    payload=payloads(({**COMMAND, "plan_hash": ROLLOUTS[0].plan and ROLLOUTS[0].plan.hash}, COMMAND, {"actor": "tpm"})),
    command=st.sampled_from(Command),
)
def test_a_command_that_is_read_is_refused_or_obeyed(payload: Payload, command: Command) -> None:
    request = decoded(CommandRequest, payload)
    if request is None:
        return
    for rollout in ROLLOUTS:
        why = refusal(rollout, command, request)
        if why is not None:
            assert 0 < len(why) < 4000
            continue
        after, said = obey(rollout, command, request, NOON)
        assert 0 < len(said) < 4000
        assert Rollout.model_validate_json(after.model_dump_json()) == after
        assert status_of(after, NOON).stage is after.stage


def desk_of(ledger: Ledger) -> Callable[[DeskRequest], DeskAnswer]:
    desk = desk_on(ledger)
    return lambda request: ActivityEnvironment().run(desk.answer, request)


def test_the_desk_answers_or_refuses_and_then_writes_nothing(ledger_url: str) -> None:
    def everything(tool: ForeignTool) -> dict[str, list[tuple[Any, ...]]]:
        more = {t: tool.rows(f"SELECT * FROM {t} ORDER BY 1, 2") for t in ("audit", "audit_heads", "import_parts")}
        return {**dump(tool), **more}

    @settings(FUZZ, max_examples=examples(80))
    @given(payload=payloads(DESK))
    def tries(payload: Payload) -> None:
        request = decoded(DeskRequest, payload)
        if request is None:
            return
        before = everything(tool)
        answer: DeskAnswer | ApplicationError
        try:
            answer = ask(request)
        except ApplicationError as refused:
            answer = refused
        TRIED["requests to the desk"] += 1
        if isinstance(answer, DeskAnswer):
            CONVERTER.to_payloads([answer])
            return
        TRIED["requests to the desk that were refused"] += 1
        assert answer.type in ("BadInput", "Refusal")
        assert answer.non_retryable
        assert_a_sentence(answer.message)
        assert everything(tool) == before

    with Ledger(ledger_url) as ledger, contextlib.closing(ForeignTool(ledger_url)) as tool:
        import_fleet(ledger, fleet())
        ask = desk_of(ledger)
        tries()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_request_with_what_is_no_number_is_refused(number: float) -> None:
    with pytest.raises(ValidationError, match="must contain only finite numbers"):
        DeskRequest(kind="clusters", arguments={"after": "", "more": [{"limit": number}]})
