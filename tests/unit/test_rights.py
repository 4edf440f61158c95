"""The table of rights has one row for every command, says what docs/access.md says, and reads on one screen."""

from __future__ import annotations

import inspect
from pathlib import Path

import models.access.rights as module
from client.backstop import Backstop
from client.operations import COMPOSED
from models.access.rights import RIGHTS, Case, Right, Second, Where
from models.access.roles import INCLUDED, Role, with_included
from models.bringup.stages import BringupCommand
from models.fleet.commands import FLEET_COMMANDS
from models.questions import QUESTIONS
from models.requests.commands import RequestCommand
from models.rollout.stages import Command

STARTS = {"rollout.launch", "fleet.launch", "request.ask", "bringup.add", "builds.use", "countersign.give"}

DOOR: dict[str, str] = {
    # What people do, and which keys it asks for.
    "launch": "rollout.launch",
    "command": "rollout.*",
    "launch_fleet": "fleet.launch",
    "fleet_command": "fleet.*",
    "request": "request.ask",
    "decide_request": "request.*",
    "bring_up": "bringup.add",
    "bringup_command": "bringup.*",
    "give_up_bringup": "desk.give_up_bringup",
    "use_build": "builds.use",
    "countersign": "countersign.give",
    "push_health": "desk.push_health",
    "push_alerts": "desk.push_health",
    "ask": "desk.*",
    # Several questions to the desk, each judged by itself.
    "add_health": "desk.add_health",
    "add_jobs": "desk.add_jobs",
    "import_fleet": "desk.take_fleet",
    "take_fleet": "desk.take_fleet",
    "fleet_pages": "desk.fleet_file",
    "read_archive": "desk.archived",
    "calendar": "desk.calendar",
    "clusters": "desk.clusters",
    "clusters_named": "desk.clusters",
    "clusters_with_stage": "desk.clusters",
    "describe_clusters": "desk.clusters",
    "flex": "desk.flex",
    "past": "desk.week",
    "plannable": "desk.snapshots",
    "senseless": "desk.senseless",
    "snapshot": "desk.snapshot",
    "tallies": "desk.tallies",
}
NO_COMMAND = {"client", "close", "connect", "check_fleet_takes", "check_not_brought_up"}
"""The connection's own, and what a front asks for itself before it keeps a command."""


def door_methods() -> set[str]:
    return ({name for name, _ in inspect.getmembers(Backstop) if not name.startswith("_")} | set(COMPOSED)) - NO_COMMAND


def every_key() -> set[str]:
    return {
        *STARTS,
        *(f"rollout.{command}" for command in Command),
        *(f"fleet.{command}" for command in FLEET_COMMANDS),
        *(f"request.{command}" for command in RequestCommand),
        *(f"bringup.{command}" for command in BringupCommand),
        *(f"desk.{kind}" for kind in QUESTIONS),
        *(f"read.{method}" for method in door_methods() - set(DOOR)),
    }


def test_each_command_has_one_row_and_no_row_is_left_over() -> None:
    assert set(RIGHTS) == every_key()


def test_what_the_door_composes_asks_for_keys_that_there_are() -> None:
    assert set(DOOR) <= door_methods()
    for key in DOOR.values():
        head = key.removesuffix("*")
        assert key in RIGHTS or (key.endswith(".*") and any(k.startswith(head) for k in RIGHTS)), key


def rows() -> dict[str, Right]:
    """Return each row of rights by its key, and its cases by theirs."""
    cases = {f"{key} {case.name}": right for key, row in RIGHTS.items() for case, right in row.case.items()}
    return {**RIGHTS, **cases}


# What docs/access.md, "The table of rights", says; typed here by hand, so that it is no copy of the table.
LAW = """
member, not bounded by cluster alone: rollout.ack, rollout.object, rollout.resolve OWN_OBJECTION, request.ask
operator alone: rollout.pause, fleet.pause, bringup.hold, desk.declare, rollout.resolve CONFIRM, desk.confirm_source
operator alone: rollout.abort, rollout.rollback, fleet.abort
operator alone: rollout.launch, fleet.launch, rollout.resume, fleet.resume, rollout.retry, bringup.release
operator alone: desk.end_window, rollout.close
approver, not launcher or changer: rollout.approve, fleet.approve
approver, not launcher: rollout.resolve
approver, not launcher: rollout.promote, fleet.promote, fleet.skip, fleet.move, rollout.launch ADOPT, fleet.launch ADOPT
approver, not launcher: rollout.close AT_RISK
operator, approver unless breaker: fleet.abort UNDO
approver, not asker: request.approve, request.decline, request.extend
admin: desk.take_fleet, desk.stage_import, desk.detach, builds.use, desk.make_token, desk.revoke_token
admin: desk.ended_sessions
admin, another admin: desk.import_access, desk.take_fleet POLICY
operator, approver: bringup.add
operator alone: bringup.check-in, bringup.retry
approver, not enterer: bringup.skip, bringup.retire
approver: bringup.cancel
"""
MEANT = {
    "member, not bounded by cluster alone": ({Role.MEMBER}, Second.NONE),
    "operator alone": ({Role.OPERATOR}, Second.NONE),
    "approver, not launcher or changer": ({Role.APPROVER}, Second.NOT_CHANGER),
    "approver, not launcher": ({Role.APPROVER}, Second.NOT_LAUNCHER),
    "operator, approver unless breaker": ({Role.OPERATOR}, Second.APPROVER_OR_BREAKER),
    "approver, not asker": ({Role.APPROVER}, Second.NOT_ASKER),
    "admin": ({Role.ADMIN}, Second.NONE),
    "admin, another admin": ({Role.ADMIN}, Second.ADMIN),
    "operator, approver": ({Role.OPERATOR}, Second.APPROVER),
    "approver, not enterer": ({Role.APPROVER}, Second.NOT_ENTERER),
    "approver": ({Role.APPROVER}, Second.NONE),
}


def test_the_table_says_what_the_law_says() -> None:
    table = rows()
    for line in LAW.strip().splitlines():
        who, _, keys = line.partition(": ")
        roles, second = MEANT[who]
        for key in keys.split(", "):
            assert (set(table[key].roles), table[key].second) == (roles, second), key


def test_what_only_reads_takes_no_second_person_and_no_more_than_a_viewer() -> None:
    for key, row in RIGHTS.items():
        if key.startswith("read."):
            assert row.second is Second.NONE
            assert Role.VIEWER in row.roles, key


def test_safety_needs_one_person_and_every_exposure_needs_two() -> None:
    safe = {"rollout.pause", "rollout.abort", "rollout.rollback", "fleet.pause", "fleet.abort", "bringup.hold"}
    assert all(RIGHTS[key].second is Second.NONE for key in safe)
    for key, row in rows().items():
        if row.roles == (Role.APPROVER,) and key not in ("bringup.cancel", "desk.tell_emergency"):
            assert row.second is not Second.NONE, key


def test_admin_includes_no_other_role_and_the_others_only_look() -> None:
    assert set(INCLUDED) == set(Role)
    assert INCLUDED[Role.ADMIN] == frozenset()
    assert with_included([Role.APPROVER]) == {Role.APPROVER, Role.VIEWER}
    assert with_included([Role.OPERATOR]) == {Role.OPERATOR, Role.VIEWER}


def test_a_case_with_another_meaning_takes_the_place_of_the_row() -> None:
    row = RIGHTS["rollout.close"]
    assert row.rights_under(frozenset()) == (row,)
    assert row.rights_under(frozenset({Case.AT_RISK})) == (row.case[Case.AT_RISK],)
    assert row.rights_under(frozenset({Case.UNDO})) == (row,), "a circumstance that this command does not know"


def test_the_table_reads_on_one_screen() -> None:
    lines = Path(module.__file__).read_text().split("# fmt: off")[1].split("# fmt: on")[0].splitlines()
    assert len(lines) <= 110
    assert max(map(len, lines)) <= 120
    assert {row.where for row in rows().values()} == set(Where)
    assert {row.second for row in rows().values()} == set(Second)
