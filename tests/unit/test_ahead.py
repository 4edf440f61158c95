"""A command's impact, as shown before it, is what happens after it, and the printed undo is accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from models.lifecycle.command_rows import NEVER
from models.notices import NoticeKind
from models.rollout.command_previews import ahead_of
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.commands import CommandRequest, obey
from models.rollout.effects import EffectKind
from models.rollout.stages import ANSWERS, Command, Stage
from models.rollout.undo_lines import UNDO, undo_line
from tests.unit.pure_world import CLUSTER, TWO, Refused, World, quota
from tests.unit.test_stuck import QUICK, monitored, stuck


def begun(stage: Stage, **more: Any) -> World:
    world = World(**{**QUICK, **more}).start()
    world.until(stage)
    return world


def waiting(**more: Any) -> World:
    return World(**{**QUICK, "notice": "1d", **more})


def rolling_back() -> World:
    world = monitored()
    world.say(Command.ROLLBACK, run=False)
    return world


def rolled_back() -> World:
    world = monitored()
    world.say(Command.ROLLBACK)
    return world


def breached() -> World:
    """Rolled back by the guard, with effects that stand."""
    world = monitored(recover_after="6h")
    world.healthy(300)
    world.wait("11m")
    assert world.is_in(Stage.ROLLED_BACK)
    return world


def closed() -> World:
    world = monitored()
    world.say(Command.CLOSE)
    return world


def aborted() -> World:
    world = waiting()
    world.say(Command.ABORT)
    return world


AT: dict[str, Callable[[], World]] = {
    "planned": waiting,
    "approved": lambda: waiting().start(),
    "buffered": lambda: begun(Stage.BUFFERED),
    "enforced": lambda: begun(Stage.ENFORCED),
    "monitored": monitored,
    "rolling_back": rolling_back,
    "rolled_back": rolled_back,
    "breached": breached,
    "stuck": lambda: stuck("rollback", EffectKind.RESTORE),
    "closed": closed,
    "aborted": aborted,
}


def prepared(world: World, command: Command) -> dict[str, str]:
    """The world made ready for the command, as far as its stage lets it, and the command's arguments."""
    try:
        match command:
            case Command.RESUME:
                world.say(Command.PAUSE)
            case Command.RESOLVE:
                world.say(Command.OBJECT, team="b")
    except Refused:
        pass
    match command:
        case Command.APPROVE:
            return {"plan_hash": "" if world.r.plan is None else world.r.plan.hash}
        case Command.ACK | Command.OBJECT:
            return {"team": "b"}
        case Command.RESOLVE:
            return {"hold": "objection-b"}
    return {}


def lines(said: str) -> Iterator[list[str]]:
    """The commands of a sentence, as a shell splits them."""
    for found in re.findall(r"backstop (?:'[^']*'|[^(.'])+", said):
        yield shlex.split(found)[1:]


def say_as_typed(world: World, words: list[str]) -> None:
    name, cluster, *options = words
    assert cluster == CLUSTER
    if name == "launch":
        world.run()
        assert world.stage.has_ended
        world._state = None
        world.launch()
        return
    given: dict[str, Any] = {k.removeprefix("--"): v for k, v in zip(options[::2], options[1::2], strict=True)}
    assert given.pop("reason", "...") == "..."
    world.say(Command(name), **given)


def test_each_command_says_how_it_is_undone() -> None:
    of_rows = {command for command in Command if ROLLOUT_ROWS[command].undo}
    assert of_rows ^ set(UNDO) == of_rows | set(UNDO) == set(Command) == {command for _, command in ANSWERS}


@pytest.mark.parametrize("command", Command)
@pytest.mark.parametrize("stage", AT)
def test_the_undo_that_is_printed_is_taken_in_the_stage_where_it_is_offered(stage: str, command: Command) -> None:
    world = AT[stage]()
    given = prepared(world, command)
    try:
        world.say(command, run=False, **given)
    except Refused:
        return
    said = world.undo_line
    assert said.startswith(("Undo", NEVER)), said
    if said.startswith("Undo, once it is rolled back"):
        world.until(Stage.ROLLED_BACK)
    elif "When it has ended" in said:
        world.until(Stage.ABORTED)
    typed = list(lines(said))
    assert typed or not said.startswith("Undo"), said
    for words in typed:
        say_as_typed(world, words)


@pytest.mark.parametrize(
    ("stage", "command", "said"),
    [
        ("planned", Command.RESUME, "Undo: backstop pause c1 --reason '...'"),
        (
            "buffered",
            Command.RESUME,
            "Undo: backstop pause c1 --reason '...' (the soak has started again all the same)",
        ),
        (
            "enforced",
            Command.RESUME,
            "Undo: backstop pause c1 --reason '...' (the soak has started again all the same)",
        ),
        ("monitored", Command.RESUME, "Undo: backstop pause c1 --reason '...'"),
        (
            "enforced",
            Command.PROMOTE,
            "It cannot be undone; to keep the next gate shut: backstop pause c1 --reason '...'",
        ),
        ("rolled_back", Command.RETRY, "Undo: backstop abort c1 --reason '...'"),
        (
            "breached",
            Command.RETRY,
            "It cannot be undone; to hold the next attempt: backstop pause c1 --reason '...'",
        ),
    ],
)
def test_an_undo_says_no_more_than_is_so(stage: str, command: Command, said: str) -> None:
    """A rollback would raise what a breach left to the exact baseline, which no hardware stands behind."""
    world = AT[stage]()
    world.say(command, run=False, **prepared(world, command))
    assert world.undo_line == said


def test_once_monitored_no_pause_is_offered_to_keep_a_gate_shut() -> None:
    world = AT["monitored"]()
    world.foreign("b", 90)
    world.say(Command.RESOLVE, hold="drift", how="restore")
    assert world.undo_line == "It cannot be undone."


@pytest.mark.parametrize("shadow", [True, False])
def test_after_a_shadow_the_line_that_begins_anew_opens_another_shadow(shadow: bool) -> None:
    """Pasted as it stood, it opened a real rollout."""
    world = World(shadow=shadow)
    world.say(Command.ABORT, run=False)
    begin_anew = f"{NEVER}; to begin anew: backstop launch c1" + (" --shadow" if shadow else "")
    assert world.undo_line == begin_anew


@pytest.mark.parametrize(
    ("by_roles", "who"),
    [(False, "tpm"), (True, "a member of b or an approver"), (None, "tpm")],
    ids=["by owners", "by roles", "nobody was asked"],
)
def test_the_undo_of_an_objection_names_who_may(by_roles: bool | None, who: str) -> None:
    before = AT["planned"]().r
    request = CommandRequest(actor="bob", team="b", reason="Friday")
    after, _ = obey(before, Command.OBJECT, request, before.launched_at)
    line = "Undo: backstop resolve c1 --hold objection-b --reason '...' (by {})"
    assert undo_line(before, after, Command.OBJECT, request, by_roles=by_roles) == line.format(who)
    ticketed = after.but(ticketed=True)
    roles = line.format("a member of b or an approver")
    assert undo_line(before, ticketed, Command.OBJECT, request) == roles, "as it is refused to anybody else"


def test_some_undo_is_offered_in_each_stage_that_is_no_end() -> None:
    offered: dict[str, set[Command]] = {}
    for stage, make in AT.items():
        for command in Command:
            world = make()
            try:
                world.say(command, run=False, **prepared(world, command))
            except Refused:
                continue
            if world.undo_line.startswith("Undo"):
                offered.setdefault(stage, set()).add(command)
    assert offered.keys() == AT.keys() - {"closed", "aborted", "stuck"}
    assert set().union(*offered.values()) == set(Command) - {
        Command.ACK,
        Command.ABORT,
        Command.CLOSE,
        Command.PROMOTE,
    }


@pytest.mark.parametrize("stage", ["buffered", "enforced", "monitored", "breached"])
@pytest.mark.parametrize("command", [Command.ROLLBACK, Command.ABORT])
@pytest.mark.parametrize("healthy", [361, 330, 0])
def test_what_is_said_of_an_undo_is_what_it_does(stage: str, command: Command, healthy: int) -> None:
    """Worked by hand: quotas 200 and 161 come back whole; of 361 promised, H GPUs have hardware."""
    world = AT[stage]()
    world.healthy_unnoticed(healthy)
    world.r = world.r.but(look_asked=True)
    world.run()
    ahead, before = ahead_of(world.r, world.now), world.values
    world.told.clear()
    world.say(command)
    world.until(Stage.ABORTED if command is Command.ABORT else Stage.ROLLED_BACK)
    assert {t.team: (t.gpus, t.back_gpus) for t in ahead.back} == {
        team: (gpus, world.values[team]) for team, gpus in before.items() if gpus != world.values[team]
    }
    assert world.values == {"a": 200, "b": 161}
    believed = 361 - ahead.unbacked_gpus
    assert believed in ({healthy} if healthy != 0 else {361, 300, 330})  # what falls so far at once is not believed
    assert sorted([*ahead.told, world.r.owner]) == sorted(world.told_of(NoticeKind.ROLLED_BACK))
    assert ahead.undoes


def test_what_today_s_hardware_backs_goes_by_islands() -> None:
    """Two islands of 100; `a` may stand on the first alone, which has 60: 40 of it lack hardware, though H is 160."""
    quotas = (quota("a", 100, islands=("x",)), quota("b", 60, busy=20))
    world = World(quotas, {"x": (100, 100), "y": (100, 100)}, **QUICK, buffer=0.4, spare_gpus=0).start()
    world.until(Stage.MONITORED)
    world.healthy(x=60)
    world.run()
    ahead = ahead_of(world.r, world.now)
    by_team = {t.team: (t.gpus, t.back_gpus, t.backing_gpus) for t in ahead.back}
    assert ahead.unbacked_gpus == 40
    assert all(back == {"a": 100, "b": 60}[team] for team, (_, back, _) in by_team.items())
    assert by_team.get("a", (0, 0, 60))[2] == 60
    said = world.say(Command.ROLLBACK)
    assert "40 GPUs of the baseline have no healthy hardware today" in said


def test_without_effects_an_abort_changes_no_quota_and_tells_those_who_were_told() -> None:
    world = waiting().start()
    ahead = ahead_of(world.r, world.now)
    assert (ahead.undoes, ahead.back, ahead.plan) == ((), (), None)
    world.told.clear()
    world.say(Command.ABORT)
    assert sorted(ahead.told) == sorted(world.told_of(NoticeKind.CLOSED)) == ["b"]


def test_a_close_tells_every_team() -> None:
    world = monitored()
    ahead = ahead_of(world.r, world.now)
    world.told.clear()
    world.say(Command.CLOSE)
    assert sorted(ahead.close_told) == sorted(world.told_of(NoticeKind.CLOSED)) == [q.team for q in TWO]


def test_the_plan_that_is_shown_is_the_one_that_an_approval_takes() -> None:
    world = waiting()
    shown = ahead_of(world.r, world.now).plan
    assert shown is not None
    world.say(Command.APPROVE, plan_hash=shown.hash)
    assert ahead_of(world.r, world.now).plan is None


@pytest.mark.parametrize("shadow", [False, True])
def test_those_are_said_to_be_told_of_an_approval_who_are(shadow: bool) -> None:
    """Of 361 the ceiling is 306. `a` gives its 40 idle GPUs, `b` 15 busy ones; of 300 healthy 292: `b` gives 29."""
    world = World((quota("a", 40, busy=0), quota("b", 321)), **{**QUICK, "notice": "1d"}, shadow=shadow)

    def approved() -> tuple[dict[str, int], list[str]]:
        """Return the plan's cuts, and who is notified of its approval."""
        ahead = ahead_of(world.r, world.now)
        assert ahead.plan is not None
        world.sent.clear()
        world.say(Command.APPROVE, plan_hash=ahead.plan.hash)
        heard = sorted(notice.audience for notice in world.sent if not notice.shadow)
        assert list(ahead.approve_told or ()) == heard
        return {q.team: q.cut_gpus for q in ahead.plan.quotas}, heard

    assert approved() == ({"a": 40, "b": 15}, [] if shadow else ["a", "b"])
    world.healthy(300)
    world.r = world.r.with_stay(replan="asked by the test")
    world.run()
    assert approved() == ({"a": 40, "b": 29}, [] if shadow else ["b"])
    assert ahead_of(world.r, world.now).told == (() if shadow else ("a", "b"))


def at_risk() -> World:
    world = monitored()
    world.healthy(300)
    return world


@pytest.mark.parametrize("stage", [*AT, "at_risk"])
@pytest.mark.parametrize(
    ("command", "reason"),
    [(Command.ABORT, "why"), (Command.ROLLBACK, "why"), (Command.CLOSE, "why"), (Command.CLOSE, "")],
)
def test_what_is_said_to_refuse_does_and_nothing_else(stage: str, command: Command, reason: str) -> None:
    world = {**AT, "at_risk": at_risk}[stage]()
    said = ahead_of(world.r, world.now).refusal(command, reason)
    if not said:
        world.say(command, run=False, reason=reason)
        return
    with pytest.raises(Refused, match=re.escape(said)):
        world.say(command, run=False, reason=reason)


def test_one_that_was_rolled_back_says_that_what_it_applied_is_undone() -> None:
    for world in (rolled_back(), waiting().start()):
        ahead = ahead_of(world.r, world.now)
        said = world.say(Command.ABORT)
        assert ahead.undone == (said == "aborted; what it had applied is undone already")
        assert ahead.undone or said == "aborted; nothing had been applied"
    assert world.stage is Stage.ABORTED
