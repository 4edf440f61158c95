"""Questions to the desk: each is answered, and goes by the name that other builds know."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

import pytest
from pydantic import ValidationError
from temporalio.client import Client

from activities.desk.desk import DeskActivities
from client.backstop import Backstop
from client.composed import Composed
from client.connection import TemporalTarget
from models.access.rights import READS_DESK
from models.base import in_one_sentence
from models.errors import BadInput, Unavailable
from models.question_base import DeskAnswer
from models.questions import (
    QUESTIONS,
    CheckLedger,
    DeskRequest,
    EndWindow,
    FlexOf,
    LedgerCluster,
    LedgerClusters,
    SnapshotNow,
    WhyNot,
)
from models.rollout.commands import CommandRequest
from models.status_questions import FleetKept, RequestsOf
from tests.unit.cli_fakes import WORKED

NAMES = """
    stage_import commit_import add_health add_jobs describe_slurm detach confirm_source clusters teams facts snapshot
    snapshots health_hours flex why archive archived calendar declare end_window end_hold overview fleet_kept tallies
    week request requests milestones plan_milestones note_milestone senseless doctor take_fleet fleet_file
    remove_cluster rename_cluster bringups give_up_bringup import_access access make_token revoke_token tokens token_of
    ended_sessions aim keep_waiting waiting waiting_one turn_waiting withdraw_waiting tell_emergency seen_emergency
    pulse push_health team_sums flex_sums haircut_sums fleet_envelopes unseen_emergencies
"""


def test_the_desk_has_an_answer_to_every_question() -> None:
    nobody: Any = Mock()
    desk = DeskActivities(*[nobody] * 7)
    assert set(desk._answers) == set(QUESTIONS.values())


def test_names_on_the_wire_stay() -> None:
    assert set(QUESTIONS) == set(NAMES.split())


def test_so_do_their_arguments() -> None:
    assert EndWindow(cluster="a", number=3).model_dump(mode="json") == {"cluster": "a", "number": 3, "reason": ""}
    assert LedgerClusters(limit=50).model_dump(mode="json") == {"after": "", "limit": 50}
    assert SnapshotNow(cluster="a").model_dump(mode="json") == {"cluster": "a", "policy": {}}
    assert WhyNot(team="a").model_dump(mode="json") == {
        "team": "a",
        "cluster": "",
        "gpus": None,
        "block": False,
        "namespace": "",
    }
    assert FlexOf().model_dump(mode="json") == {"after": "", "limit": 20, "cluster": "", "mode": "equal"}


def test_an_answer_of_nothing_is_taken_only_where_it_may_be_nothing() -> None:
    assert FleetKept.read(None) is None
    assert RequestsOf.read([]) == ()
    for question, result in ((CheckLedger, None), (RequestsOf, None), (CheckLedger, []), (FleetKept, [])):
        with pytest.raises(ValidationError):
            question.read(result)


def test_what_no_desk_would_take_is_refused_before_it_is_sent() -> None:
    with pytest.raises(BadInput, match=r"^cluster: String should have at least 1 character \(given: ''\)$"):
        EndWindow(cluster="", number=3)


def test_an_unknown_question_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValidationError, match=r"must be one of .*stage_import, commit_import, .*, not 'open sesame'"):
        DeskRequest(kind="open sesame")


class _Newer:
    """A server whose desk knows one thing more than we do."""

    async def start_workflow(self, *_: Any, **__: Any) -> _Newer:
        return self

    async def result(self) -> DeskAnswer:
        return DeskAnswer(result={"open_rollouts": 3, "schedulers": {}, "moon": "full"})


async def test_an_answer_of_another_build_is_told_in_a_sentence() -> None:
    door = Backstop(cast("Client", _Newer()), "tpm", TemporalTarget(options={}, embedded=True))
    with pytest.raises(Unavailable, match=r"^the worker runs another version of Backstop: .* \(moon: Extra inputs"):
        await door.ask(CheckLedger())


def test_what_only_reads_is_named_and_all_else_is_kept_as_a_warrant() -> None:
    """A question that changes something is obeyed once: a new one counts as such until somebody says otherwise."""
    assert set(QUESTIONS) >= READS_DESK
    changes = {
        "take_fleet",
        "remove_cluster",
        "rename_cluster",
        "add_health",
        "declare",
        "end_window",
        "end_hold",
        "detach",
    }
    assert changes <= set(QUESTIONS) - READS_DESK


@pytest.mark.parametrize("knows_names", [True, False], ids=["a worker of today", "one that does not know the field"])
async def test_named_clusters_are_asked_for_alone(knows_names: bool) -> None:
    asked: list[LedgerClusters] = []

    class Door(Composed):
        async def ask(self, question: Any, payload: str = "") -> Any:
            asked.append(question)
            names = [n for n in ("a", "b", "c") if n > question.after and (n in question.names or not knows_names)]
            return tuple(
                LedgerCluster(cluster=WORKED.model_copy(update={"name": n}), rollout=None, stage=None, name=n)
                for n in names
            )

    assert [spec.name for spec in await Door().clusters_named({"c", "b", "gone"})] == ["b", "c"]
    assert {question.names for question in asked} == {("b", "c", "gone")}
    asked.clear()
    assert await Door().clusters_named([]) == []
    assert asked == [], "nobody is asked for nothing"


def test_a_value_that_a_fault_names_is_not_named_twice() -> None:
    with pytest.raises(ValidationError) as refused:
        CommandRequest.model_validate({"actor": "tpm", "reason": "a\0b"})
    assert in_one_sentence(refused.value) == r"reason: must not contain a NUL character: 'a\x00b'"
    with pytest.raises(ValidationError) as refused:
        CommandRequest.model_validate({"actor": "tpm", "reason": 7})
    assert in_one_sentence(refused.value) == "reason: Input should be a valid string (given: 7)"
