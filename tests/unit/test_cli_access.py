"""`backstop access`: what is sent, what is shown once, and what people read."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.commands.access import _TYPED
from cli.main import run
from client.doctor import access_checks
from client.inputs.access_files import read_access
from client.who_could_act import could_act_now, who_could_open
from models.access.access_file import AccessFile
from models.access.access_versions import (
    NOT_CONFIGURED,
    AccessCheck,
    AccessOutcome,
    AccessStands,
    AccessVersion,
    HowImported,
)
from models.access.command_targets import command_awaited
from models.access.rights import RIGHTS, Case
from models.access.tokens import TokenLine, token_hash
from models.access_questions import AccessNow, AimOf, ImportAccess, MakeToken, RevokeToken, Tokens
from models.errors import Unavailable
from models.lifecycle.holds import Hold, HoldKind
from models.rollout.stages import Stage
from models.rollout.status_models import Condition, RolloutStatus, TeamStatus
from tests.unit.access_world import access, grant
from tests.unit.cli_fakes import FakeBackstop, answering, status
from views.access import outcome_parts
from web.console.pages.cluster import _track

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "access.yaml")


class Door(FakeBackstop):
    """Keeps what it is asked, and answers as the desk would."""

    def __init__(self, stands: AccessStands | None = None, first: str = "") -> None:
        """`first`: who launched, asked for or entered whatever a command is aimed at, as the ledger says."""
        super().__init__()
        self.stands, self.questions, self.first = stands or AccessStands(), list[Any](), first
        self.another_admin = False

    async def ask(self, question: Any) -> Any:
        self.questions.append(question)
        match question:
            case AccessNow():
                return self.stands
            case AimOf():
                return question.target.but(first=self.first)
            case ImportAccess():
                return AccessOutcome(
                    hash="feed", changes=("+ user:tpm is admin",), awaits=self.another_admin, said="it waits"
                )
            case MakeToken():
                return token(question.name, question.scope)
            case RevokeToken():
                return token(question.name).but(revoked_at=NOON, revoked_by="user:tpm")
            case Tokens():
                return (token("ci"), token("old").but(revoked_at=NOON, revoked_by="user:tpm"))
        return await super().ask(question)


def token(name: str, scope: Any = None) -> TokenLine:
    line = TokenLine.model_validate(
        {"name": name, "owner": "service:ci", "scope": {"roles": ["viewer"]}}
        | {"made_by": "user:tpm", "made_at": NOON, "expires_at": datetime.now(UTC) + timedelta(days=30)}
    )
    return line if scope is None else line.but(scope=scope)


def in_force(file: AccessFile | None = None) -> AccessStands:
    file = file or access(grant("user:sre", "approver", clusters=["h100-*"]))
    version = AccessVersion(version=3, hash=file.hash, file=file, by="user:tpm", at=NOON, how=HowImported.COUNTERSIGNED)
    return AccessStands(version=version.but(second="user:sre-lead"))


_TOKEN = "bst_[A-Za-z0-9_-]{43}"


def said(door: Door, capsys: pytest.CaptureFixture[str], *line: str) -> str:
    with answering(door):
        assert run(["access", *line]) == 0
    return capsys.readouterr().out


def test_a_token_is_shown_once_and_never_sent(capsys: pytest.CaptureFixture[str]) -> None:
    door = Door()
    line = ("token", "new", "ci", "--owner", "service:ci", "--role", "viewer", "--command", "read.*", "--days", "7")
    shown = said(door, capsys, *line)
    (question,) = door.questions
    made = shown.splitlines()[0]
    assert re.fullmatch(_TOKEN, made)
    assert question.hash == token_hash(made)
    assert made not in question.model_dump_json()
    assert (question.owner, question.days, question.scope.commands) == ("service:ci", 7, ("read.*",))
    assert shown.splitlines()[-1] == "Undo: backstop access token revoke ci"
    again = json.loads(said(door, capsys, *line, "--json"))
    assert again["schema"] == "backstop.access-token/1"
    assert re.fullmatch(_TOKEN, again["token"])
    assert again["token"] != made


def test_a_file_is_sent_whole_and_a_hash_alone(capsys: pytest.CaptureFixture[str]) -> None:
    door = Door()
    assert said(door, capsys, "import", EXAMPLE, "--reason", "r", "--actor", "tpm").splitlines() == [
        *("+ user:tpm is admin", "Access file feed: it waits"),
    ]
    said(door, capsys, "import", "--confirm", "feed", "--dry-run", "--json")
    first, second = door.questions
    assert (first.file, first.reason, first.dry_run) == (read_access(EXAMPLE), "r", False)
    assert (second.file, second.confirm, second.dry_run) == (None, "feed", True)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["people", "json"])
def test_a_file_that_waits_for_another_admin_ends_with_3_and_a_dry_run_with_0(
    form: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    door = Door()
    door.another_admin = True
    with answering(door):
        assert run(["access", "import", EXAMPLE, "--reason", "r", *form]) == 3
        assert "it waits" in capsys.readouterr().out
        assert run(["access", "import", EXAMPLE, "--dry-run", *form]) == 0


def test_without_a_file_it_says_that_actors_are_asserted_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert " ".join(said(Door(), capsys, "show").split()) == NOT_CONFIGURED
    assert "everybody who reaches Temporal may do everything" in NOT_CONFIGURED
    answer = json.loads(said(Door(), capsys, "show", "--json"))
    assert (answer["configured"], answer["version"], answer["said"]) == (False, None, NOT_CONFIGURED)
    with answering(Door()):
        assert run(["access", "who-can", "approve", "h100-a"]) == 3


def test_who_put_the_file_there_is_shown_with_what_it_gives(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(Door(in_force()), capsys, "show")
    assert "Version 3" in shown
    assert "imported by user:tpm, countersigned by user:sre-lead; it names 2 admins." in " ".join(shown.split())
    assert any(line.split() == ["user:sre", "approver", "clusters", "h100-*"] for line in shown.splitlines())
    admins = [line.split() for line in shown.splitlines() if " admin " in line and line.startswith("user:")]
    assert admins == [[name, "admin", "everywhere"] for name in ("user:tpm", "user:sre-lead")], "each in full"


def test_who_can_and_can_answer_from_the_file_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    door = Door(in_force())
    assert "user:sre" in said(door, capsys, "who-can", "approve", "h100-a")
    assert "nobody" in said(door, capsys, "who-can", "approve", "a100")
    lines = json.loads(said(door, capsys, "can", "sre", "h100-a", "--json"))["rights"]
    assert {one["command"] for one in lines if one["second"] == "not who launched it"} >= {"rollout.promote"}
    shown = " ".join(said(door, capsys, "can", "sre", "h100-a").split())
    assert "close while it is at risk or stuck approver" in shown, "each circumstance is named once"
    assert (
        said(door, capsys, "can", "nobody-known", "h100-a") == "user:nobody-known has no right that holds in h100-a.\n"
    )


def test_what_is_by_team_is_asked_for_with_a_team(capsys: pytest.CaptureFixture[str]) -> None:
    stands = in_force()
    assert stands.version is not None
    file = access(grant("user:lead", "member", teams=["research"]), grant("user:sre", "approver"))
    door = Door(stands.but(version=stands.version.but(file=file, hash=file.hash)))
    asked = " ".join(said(door, capsys, "who-can", "ack", "h100-a").split())
    assert "nobody for all teams" in asked
    assert asked.endswith("Who could acknowledge depends on the team: give --team TEAM.")
    named = said(door, capsys, "who-can", "ack", "h100-a", "--team", "research")
    assert "user:lead" in named
    assert "--team" not in named
    assert "--team" not in said(door, capsys, "who-can", "pause", "h100-a"), "it is of the cluster"
    assert "nobody\n" in said(door, capsys, "who-can", "ack", "h100-a", "--team", "evals").replace(" \n", "\n")
    may = " ".join(said(door, capsys, "can", "lead", "h100-a").split())
    assert may.endswith("What else user:lead may do depends on the team: give --team TEAM.")
    whole = said(door, capsys, "can", "lead", "h100-a", "--team", "research")
    assert {"rollout.ack", "rollout.object"} <= set(whole.split())
    assert "--team" not in whole
    assert "--team" not in said(door, capsys, "can", "sre", "h100-a"), "no role of theirs is bounded to teams"


@pytest.mark.parametrize(
    ("typed", "key"),
    [("approve", "rollout.approve"), ("fleet pace", "fleet.pace"), ("read.audit", "read.audit"), *_TYPED.items()],
)
def test_commands_are_found_as_they_are_typed(typed: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = json.loads(said(Door(in_force()), capsys, "who-can", typed, "--json"))["rights"]
    assert lines[0]["command"] == key
    assert key in RIGHTS


def test_tokens_are_listed_with_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(Door(), capsys, "token", "list", "--all")
    assert "revoked by user:tpm" in shown
    assert said(Door(), capsys, "token", "list", "-o", "name").split() == ["ci", "old"]
    assert "within a minute every front refuses it" in said(Door(), capsys, "token", "revoke", "ci")


async def test_a_rollout_that_waits_says_who_could_act() -> None:
    waiting = status().but(cluster="h100-a", needs="approve the plan: backstop approve h100-a --plan feed")
    file = access(grant("user:sre", "approver", clusters=["h100-*"]), grant("user:hw-lead", "operator"))

    async def could(shown: RolloutStatus, first: str = "") -> tuple[str, ...]:
        return await could_act_now(Door(in_force(file), first).ask, shown)

    assert await could(waiting) == ("user:sre",)
    assert await could(waiting, first="user:sre") == (), "whoever launched it may not approve it"
    assert await could(waiting.but(needs="paused by tpm: backstop resume h100-a")) == ("user:hw-lead",)
    assert await could(waiting.but(needs="mend the health source")) == ()
    closing = waiting.but(needs="rolled back: backstop close h100-a", at_risk=(), breach_of=(), stage=Stage.ROLLED_BACK)
    assert await could(closing) == ("user:hw-lead",)
    assert await could(closing.but(breach_of=("a",))) == ("user:sre",)


async def test_beside_each_thing_that_shuts_a_gate_stands_who_could_open_it(capsys: pytest.CaptureFixture[str]) -> None:
    def hold(name: str, kind: HoldKind, actor: str, until: datetime | None = None) -> Hold:
        return Hold(id=name, kind=kind, reason="a run", actor=actor, at=NOON, until=until)

    def team(name: str, planned: int, *, acknowledged: bool) -> TeamStatus:
        own = {"parent": None, "leaf": True, "baseline_gpus": 9, "quota_gpus": 9, "backing_gpus": 9, "promise": False}
        return TeamStatus.model_validate(own | {"team": name, "planned_gpus": planned, "acknowledged": acknowledged})

    shown = status().but(
        cluster="h100-a",
        holds=(
            hold("objection-b", HoldKind.OBJECTION, "kim"),
            hold("pause", HoldKind.PAUSED, "ana"),
            hold("freeze-1", HoldKind.FREEZE, "calendar", NOON),
            hold("blast_radius", HoldKind.BLAST_RADIUS, "backstop", NOON),
        ),
        lifts={
            "objection-b": "backstop resolve h100-a --hold objection-b --reason '...'",
            "pause": "backstop resume h100-a",
        },
        may_lift={"objection-b": ("tpm", "kim")},
        needs="paused by ana: backstop resume h100-a",
        waiting_for=(Condition(name="acks", met=False, text="1 of 2 acknowledgements, or their deadline"),),
        teams=(
            team("research", 5, acknowledged=False),
            team("b", 5, acknowledged=True),
            team("c", 9, acknowledged=False),
        ),
    )
    people = grant("user:hw-lead", "operator"), grant("user:lead", "member", teams=["research"])
    door = Door(in_force(access(grant("user:sre", "approver", clusters=["h100-*"]), *people)))
    openers = await who_could_open(door.who_could, shown)
    assert openers.lifts == {"objection-b": "user:sre", "pause": "user:hw-lead", "freeze-1": "user:hw-lead"}
    assert openers.acks == {"research": "user:lead"}
    assert [member["waits"] for member in _track(shown.but(stage=Stage.BUFFERED), (), openers)][2] == [
        "1 of 2 acknowledgements, or their deadline; missing: research (by user:lead)"
    ]

    unless = "unless an access file says otherwise"
    nobody = await who_could_open(Door().who_could, shown)
    assert nobody.lifts == {
        "objection-b": f"tpm, kim, {unless}", "pause": f"anybody, {unless}", "freeze-1": f"anybody, {unless}"
    }  # fmt: skip
    assert nobody.acks == {"research": f"anybody, {unless}"}

    async def silent(_: str, __: str) -> list[str]:
        raise Unavailable("no worker is running")

    unknown = await who_could_open(silent, shown)
    assert {*unknown.lifts.values(), *unknown.acks.values()} == {"who could act is unknown: no worker answered"}
    held = shown.but(stage=Stage.BUFFERED, waiting_for=(Condition(name="holds", met=False, text="all in one line"),))
    assert [member["waits"] for member in _track(held, (), openers)][2] == [
        "objection by kim: a run (to be lifted by user:sre)",
        "paused by ana: a run (to be lifted by user:hw-lead)",
        f"freeze: a run, until {NOON:%Y-%m-%d %H:%MZ} (to be lifted by user:hw-lead)",
        f"blast radius: a run, until {NOON:%Y-%m-%d %H:%MZ}",
    ]

    door.statuses = [shown]
    with answering(door):
        await asyncio.to_thread(run, ["status", "h100-a", "-o", "wide"])
    said = " ".join(capsys.readouterr().out.split())
    assert "lift it: backstop resolve h100-a --hold objection-b --reason '...' (could: user:sre)" in said
    assert said.count("lift it:") == 1, "the line that it needs stands there once"


_ORDERED = "plug it in, then: backstop bringup check-in h100-a --step cabling"


@pytest.mark.parametrize(
    ("needs", "key"),
    [
        ("approve the plan: backstop fleet approve --plan feed", "fleet.approve"),
        ("2 wait for a person: backstop status --needs (or backstop fleet skip a --reason ...)", "fleet.skip"),
        (_ORDERED, "bringup.check-in"),
        ("backstop request approve q-1", "request.approve"),
        ("a is in doubt: backstop confirm --source x", "desk.confirm_source"),
        ("it is lost: backstop launch a --adopt", "rollout.launch"),
        ("it is lost: backstop launch --fleet --adopt", "fleet.launch"),
        ("mend the health source", ""),
    ],
)
def test_the_command_that_something_needs_is_read_off_its_line(needs: str, key: str) -> None:
    cases = frozenset({Case.ADOPT} if "--adopt" in needs else ())
    assert command_awaited(needs) == (key, cases)
    assert not key or key in RIGHTS


def test_status_shows_who_could_act(capsys: pytest.CaptureFixture[str]) -> None:
    door = Door(in_force())
    door.statuses = [status().but(cluster="h100-a", needs="approve the plan: backstop approve h100-a --plan feed")]
    with answering(door):
        assert run(["status", "h100-a"]) == 0
    assert "could act user:sre" in [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_doctor_says_whether_access_is_configured_and_what_is_odd() -> None:
    (none,) = access_checks(None, tickets=False)
    assert (none.ok, none.text.partition(":")[0]) == (True, "not configured")
    (signed,) = access_checks(None, tickets=True)
    assert (signed.ok, "every command needs a front's ticket" in signed.text) == (True, True)
    well = AccessCheck(configured=True, admins=2)
    assert [c.text for c in access_checks(well, tickets=True)] == ["2 admins by name"]
    (past,) = access_checks(well, tickets=False)
    assert (past.ok, past.remedy.partition(",")[0]) == (False, "backstop keys new")
    assert "everybody who reaches Temporal bypasses the access file" in past.text
    odd = {
        "two_person is off": AccessCheck(configured=True, admins=2, two_person=False),
        "nobody could countersign": AccessCheck(configured=True, admins=1),
        "is not what was imported": AccessCheck(configured=True, wrong="it is not what was imported"),
    }
    for text, check in odd.items():
        (one,) = access_checks(check, tickets=True)
        assert not one.ok
        assert text in one.text
        assert one.remedy
    _, tokens = access_checks(
        AccessCheck(configured=True, admins=2, expiring=("ci of service:ci, 2026-12-01",)), tickets=True
    )
    assert (tokens.ok, tokens.text) == (False, "1 token expires within two weeks: ci of service:ci, 2026-12-01")


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"in_force": True, "version": 2}, "To undo: import the file that was in force before."),
        (
            {"in_force": True, "version": 1},
            "You cannot undo this import: an access file is now in force, and only another one can replace it.",
        ),
        ({"awaits": True}, "Access file feed: it is so"),
    ],
)
def test_an_import_says_how_it_is_undone_once_it_is_in_force(changes: dict[str, Any], last: str) -> None:
    outcome = AccessOutcome(hash="feed", changes=("+ user:tpm is admin",), said="it is so", **changes)
    assert str(outcome_parts(outcome)[-1]) == last
