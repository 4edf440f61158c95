"""A stuck rollout in its own words, and that they are so: what it says stands, and what a command does.

Each sentence of a status has a predicate on the world (tests/unit/pure_world.py) below; one without fails.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

import pytest

from activities.notices.rendering import render
from models.cluster.readings import LimitMode
from models.notices import NoticeKind
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from models.rollout.state import UndoCause
from models.rollout.status import needs_of
from models.rollout.status_models import UndoStatus, ValueLeft, value_text
from tests.unit.pure_world import TWO, Refused, World, quota

K = EffectKind
FORWARD = (K.RESERVE, K.SET_SOFT, K.HARDEN, K.FOLLOW)
BACK = (K.UNFOLLOW, K.SOFTEN, K.RESTORE, K.RELEASE)
QUICK: dict[str, Any] = {"notice": "0s", "soak_buffered": "1h", "soak_enforced": "1h"}
BASELINE, CUT, BACKED = {"a": 200, "b": 161}, {"a": 200, "b": 106}, {"a": 200, "b": 100}
"""Of T = H = 361; and with H = 300."""
LATER = "the rollout is rolled back, and makes its next attempt after health has been good for long enough"
OPEN, ENDS = "the rollout is rolled back and stays open", "the rollout ends, aborted"
MEND = "Mend the cause first: if it is still there, the rollout is stuck again, and nothing is lost"
ASIS, TOLD = "ends the rollout as it is:", "(Backstop notifies you if that fails)"
STAYS = f"{ASIS} the quotas stay at their earlier values; limits stay as before the rollout."
STAYS_BACKED = f"{ASIS} the quotas stay at the values that hardware backed when the rollback began; limits stay soft."
BY_HAND = "Nothing more is undone: from then on you change quotas by hand"


def a_soft(world: World) -> None:
    """The baseline has a soft quota and a hard one."""
    world.quotas["a"] = world.quotas["a"].model_copy(update={"mode": LimitMode.SOFT})


def monitored(**more: Any) -> World:
    world = World(**{**QUICK, **more}).start()
    world.until(Stage.MONITORED)
    return world


def stuck(how: str, *kinds: EffectKind, times: int = 1, **more: Any) -> World:
    """Monitored, then rolled back with these inverses failing for good."""
    world = monitored(**more)
    for kind in kinds * times:
        world.fail(kind, "Refusal")
    if how == "breach":
        world.healthy(300)
        world.wait("11m")
    else:
        world.say(Command(how))
    assert world.is_in(Stage.STUCK)
    return world


def undoing(world: World) -> UndoStatus:
    found = world.status.undoing
    assert found is not None
    return found


def does(world: World, command: str) -> str:
    (found,) = [c.does for c in undoing(world).choices if c.command == command]
    return found


def by_team(world: World) -> dict[str, LimitMode]:
    return {t: q.mode for t, q in world.quotas.items()}


# --- what it says stands -----------------------------------------------------------------------

_TRUE: dict[str, Callable[[World, dict[str, LimitMode]], bool]] = {
    "follow: the flex pool no longer follows health": lambda w, _: not w.follows,
    "follow: the flex pool still follows health": lambda w, _: w.follows,
    "harden: the limits are soft again": lambda w, _: w.modes == {LimitMode.SOFT},
    "harden: the limits are as before the rollout": lambda w, before: by_team(w) == before,
    "harden: the limits are as before the rollout because `restore` wrote them": lambda w, before: by_team(w) == before,
    "harden: the limits are soft because `restore` wrote them": lambda w, _: w.modes == {LimitMode.SOFT},
    "harden: the limits are still hard": lambda w, _: w.modes == {LimitMode.HARD},
    "set_soft: the quotas have their earlier values, and the limits are as before the rollout": lambda w, before: (
        w.values == BASELINE and by_team(w) == before
    ),
    "set_soft: the quotas have the values that hardware backed when the rollback began, and the limits are soft": (
        lambda w, _: w.values == BACKED and w.modes == {LimitMode.SOFT}
    ),
    "set_soft: the quotas still have the rollout's values": lambda w, _: w.values == CUT,
    "reserve: the freed capacity is released": lambda w, _: w.limit is None,
    "reserve: the freed capacity is released, so that others can raise quotas into it": lambda w, _: w.limit is None,
    "reserve: the reserved GPUs match the restored values": lambda w, _: w.limit == 300,
    "reserve: the freed capacity is still reserved: no quota can be raised into it": lambda w, _: w.limit == 306,
    "reserve: the reserved GPUs still match the rollout's values": lambda w, _: w.limit == 306,
}


def is_true(world: World, before: dict[str, LimitMode]) -> None:
    """Every sentence of the status is so, and every effect has one."""
    shown = undoing(world)
    for text in shown.undone:
        assert _TRUE[text](world, before), text
    for text in shown.not_undone:
        said, failed = text.split("; ", 1)
        assert _TRUE[said](world, before), text
        assert re.fullmatch(r"(\w+) failed: \1 did not answer", failed)
    assert sorted(text.split(":")[0] for text in (*shown.undone, *shown.not_undone)) == sorted(FORWARD)
    back = BACKED if shown.why == "breach" else BASELINE
    left = {t: (gpus, back[t]) for t, gpus in world.values.items() if gpus != back[t]}
    assert {v.team: (v.gpus, v.target_gpus) for v in shown.values} == left
    assert not any(v.by_others or v.unsure for v in shown.values)
    assert shown.commands == ("retry", "close")
    assert all(c.line in world.needs for c in shown.choices)


# --- what it says a command does -----------------------------------------------------------------


def retry_keeps_its_word(world: World) -> None:
    """Check a retry after the cause was mended: it touches nothing else, and each quota's notice comes true."""
    text, made, shown = does(world, "retry"), len(world.effects), undoing(world)
    runs = re.fullmatch(rf"runs ([a-z, ]+) again and nothing else(?: \((.*)\))?; then (.*)\. {MEND}", text)
    assert runs is not None, text
    said = world.say(Command.RETRY)
    assert said == f"running {runs[1].replace(' and ', ', ')} again; if that fails, the rollout is stuck as before"
    assert [*map(str, world.effects[made:])] == re.split(r", | and ", runs[1])
    moved = dict(each.split(" to ") for each in runs[2].split(", ")) if runs[2] else {}
    assert moved == {v.team: str(v.target_gpus) for v in shown.values if not v.by_others}
    assert {team: str(world.values[team]) for team in moved} == moved
    assert runs[3] == {Stage.ABORTED: ENDS}.get(world.stage, LATER if shown.why == "breach" else OPEN)
    assert world.is_in(Stage.ABORTED) or world.is_in(Stage.ROLLED_BACK)
    assert (world.follows, world.limit) == (False, sum(world.values.values()) if shown.why == "breach" else None)


def close_keeps_its_word(world: World, before: dict[str, LimitMode]) -> None:
    text, values, modes, limit, follows = does(world, "close"), world.values, by_team(world), world.limit, world.follows
    parts = re.fullmatch(rf"ends the rollout as it is: (.*); limits stay (.*?)\.(?: Then (.*)\.)? {BY_HAND}", text)
    assert parts is not None, text
    said = world.say(Command.CLOSE, reason="by hand")
    assert said == "closed as it is; the values and limits stay, and nothing more is undone"
    assert (world.stage, world.values, by_team(world)) == (Stage.CLOSED, values, modes)
    kept = re.findall(r"(\w+) stays at (\d+), not (\d+)", parts[1])
    back = BACKED if world.r.undo is not None and world.r.undo.why is UndoCause.BREACH else BASELINE
    assert kept == [(t, str(gpus), str(back[t])) for t, gpus in values.items() if gpus != back[t]]
    if not kept:
        goal = "the values that hardware backed when the rollback began" if back is BACKED else "their earlier values"
        assert (parts[1], values) == (f"the quotas stay at {goal}", back)
    told = {mode.value: dict.fromkeys(modes, mode) for mode in LimitMode}
    assert modes == told.get(parts[2], before)
    assert parts[2] in ("hard", "soft", "as before the rollout")
    ends = ["the reserved GPUs are released"] * (limit is not None) + ["the flex pool stops following health"] * follows
    assert (parts[3] or "") == (" and ".join(ends) + " (Backstop notifies you if that fails)" if ends else "")
    assert (world.limit, world.follows) == (None, False)
    assert world.told_of(NoticeKind.HELD) == []


@pytest.mark.parametrize("before", [lambda _: None, a_soft], ids=["hard", "mixed"])
@pytest.mark.parametrize("how", ["rollback", "abort", "breach"])
@pytest.mark.parametrize("kinds", [c for n in (1, 2, 3, 4) for c in combinations(BACK, n)], ids="+".join)
def test_whatever_fails_the_status_is_true_and_its_commands_keep_their_word(
    kinds: tuple[EffectKind, ...], how: str, before: Callable[[World], None]
) -> None:
    world = stuck(how, *kinds, before=before, every_state=False)
    modes = {"a": LimitMode.HARD if before is not a_soft else LimitMode.SOFT, "b": LimitMode.HARD}
    is_true(world, modes)
    assert [text.split(":")[0] for text in undoing(world).not_undone] == [FORWARD[3 - BACK.index(k)] for k in kinds]
    assert world.told_of(NoticeKind.STUCK) == ["tpm"]

    shown, again = undoing(world), copy.deepcopy(world)
    for kind in kinds:
        again.fail(kind, "Refusal")
    again.say(Command.RETRY)
    assert again.is_in(Stage.STUCK)
    assert again.told_of(NoticeKind.STUCK) == ["tpm", "tpm"]
    now = undoing(again)
    assert (now.not_undone, now.values, now.choices) == (shown.not_undone, shown.values, shown.choices)
    assert sorted(now.undone) == sorted(shown.undone)
    assert (again.values, again.modes, again.limit, again.follows) == (
        world.values,
        world.modes,
        world.limit,
        world.follows,
    )
    is_true(again, modes)

    for one in (world, again):
        closed = copy.deepcopy(one)
        retry_keeps_its_word(one)
        close_keeps_its_word(closed, modes)
    if how != "breach":
        assert (world.values, by_team(world)) == (BASELINE, modes)


# --- the words ---------------------------------------------------------------------------------

FOLLOWS_NOT = "follow: the flex pool no longer follows health"
SOFT_AGAIN = "harden: the limits are soft again"
RESTORED = "set_soft: the quotas have their earlier values, and the limits are as before the rollout"
BACKED_NOW = (
    "set_soft: the quotas have the values that hardware backed when the rollback began, and the limits are soft"
)
RELEASED = "reserve: the freed capacity is released"
FITS = "reserve: the reserved GPUs match the restored values"


@pytest.mark.parametrize(
    ("how", "kind", "undone", "not_undone", "values", "retry", "close"),
    [
        (
            "rollback",
            K.UNFOLLOW,
            ("harden: the limits are as before the rollout", RESTORED, RELEASED),
            "follow: the flex pool still follows health; unfollow failed: unfollow did not answer",
            (),
            f"runs unfollow again and nothing else; then {OPEN}. {MEND}",
            f"{STAYS} Then the flex pool stops following health {TOLD}. {BY_HAND}",
        ),
        (
            "abort",
            K.SOFTEN,
            (FOLLOWS_NOT, RESTORED, RELEASED),
            (
                "harden: the limits are as before the rollout because `restore` wrote them; "
                "soften failed: soften did not answer"
            ),
            (),
            f"runs soften and restore again and nothing else; then {ENDS}. {MEND}",
            f"{STAYS} {BY_HAND}",
        ),
        (
            "rollback",
            K.RESTORE,
            (FOLLOWS_NOT, SOFT_AGAIN, f"{RELEASED}, so that others can raise quotas into it"),
            "set_soft: the quotas still have the rollout's values; restore failed: restore did not answer",
            (ValueLeft(team="b", gpus=106, target_gpus=161),),
            f"runs restore again and nothing else (b to 161); then {OPEN}. {MEND}",
            f"ends the rollout as it is: b stays at 106, not 161; limits stay soft. {BY_HAND}",
        ),
        (
            "rollback",
            K.RELEASE,
            (FOLLOWS_NOT, "harden: the limits are as before the rollout", RESTORED),
            (
                "reserve: the freed capacity is still reserved: no quota can be raised into it; "
                "release failed: release did not answer"
            ),
            (),
            f"runs release again and nothing else; then {OPEN}. {MEND}",
            f"{STAYS} Then the reserved GPUs are released {TOLD}. {BY_HAND}",
        ),
        (
            "breach",
            K.UNFOLLOW,
            (SOFT_AGAIN, BACKED_NOW, FITS),
            "follow: the flex pool still follows health; unfollow failed: unfollow did not answer",
            (),
            f"runs unfollow again and nothing else; then {LATER}. {MEND}",
            (
                f"{STAYS_BACKED} Then the reserved GPUs are released and the flex pool stops following health {TOLD}. "
                f"{BY_HAND}"
            ),
        ),
        (
            "breach",
            K.SOFTEN,
            (FOLLOWS_NOT, BACKED_NOW, FITS),
            "harden: the limits are soft because `restore` wrote them; soften failed: soften did not answer",
            (),
            f"runs soften again and nothing else; then {LATER}. {MEND}",
            f"{STAYS_BACKED} Then the reserved GPUs are released {TOLD}. {BY_HAND}",
        ),
        (
            "breach",
            K.RESTORE,
            (FOLLOWS_NOT, SOFT_AGAIN, FITS),
            "set_soft: the quotas still have the rollout's values; restore failed: restore did not answer",
            (ValueLeft(team="b", gpus=106, target_gpus=100),),
            f"runs restore again and nothing else (b to 100); then {LATER}. {MEND}",
            (
                "ends the rollout as it is: b stays at 106, not 100; limits stay soft. "
                f"Then the reserved GPUs are released (Backstop notifies you if that fails). {BY_HAND}"
            ),
        ),
        (
            "breach",
            K.RELEASE,
            (FOLLOWS_NOT, SOFT_AGAIN, BACKED_NOW),
            "reserve: the reserved GPUs still match the rollout's values; release failed: release did not answer",
            (),
            f"runs release again and nothing else; then {LATER}. {MEND}",
            f"{STAYS_BACKED} Then the reserved GPUs are released {TOLD}. {BY_HAND}",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 12 else "",
)
def test_each_inverse_that_fails_alone_is_told_in_these_words(
    how: str, kind: EffectKind, undone: tuple[str, ...], not_undone: str, values: Any, retry: str, close: str
) -> None:
    world = stuck(how, kind)
    shown = undoing(world)
    assert (shown.undone, shown.not_undone, shown.values) == (undone, (not_undone,), values)
    assert [(c.command, c.line, c.does) for c in shown.choices] == [
        ("retry", "backstop retry c1 --reason '...'", retry),
        ("close", "backstop close c1 --reason '...'", close),
    ]
    assert world.needs == (
        "mend the cause, then give: backstop retry c1 --reason '...', "
        "or end the rollout as it is: backstop close c1 --reason '...'"
    )


def test_two_that_fail_at_once_are_told_together() -> None:
    world = stuck("rollback", K.SOFTEN, K.RESTORE)
    shown = undoing(world)
    assert shown.undone == (FOLLOWS_NOT, f"{RELEASED}, so that others can raise quotas into it")
    assert shown.not_undone == (
        "harden: the limits are still hard; soften failed: soften did not answer",
        "set_soft: the quotas still have the rollout's values; restore failed: restore did not answer",
    )
    assert does(world, "retry").startswith("runs soften and restore again and nothing else (b to 161); then")
    assert "b stays at 106, not 161; limits stay hard. Nothing more" in does(world, "close")


def test_a_step_that_is_undone_owes_only_what_was_attempted() -> None:
    world = World(**QUICK).start()
    world.until(Stage.BUFFERED)
    world.fail(K.RESTORE, "Refusal")
    world.say(Command.ROLLBACK)
    shown = undoing(world)
    assert shown.undone == (f"{RELEASED}, so that others can raise quotas into it",)
    assert "limits stay soft" in does(world, "close")
    retry_keeps_its_word(world)
    assert undoing(world).undone == (f"{RELEASED}", RESTORED)


@pytest.mark.parametrize("before", [lambda _: None, a_soft], ids=["hard", "mixed"])
def test_values_that_are_back_already_are_not_said_to_be_the_rollouts(before: Callable[[World], None]) -> None:
    """Softening takes away the baseline's limits, and restoring them fails this time."""
    world = stuck("rollback", K.SOFTEN, before=before)
    world.fail(K.RESTORE, "Refusal")
    world.say(Command.RETRY)
    assert (world.stage, world.values, world.modes) == (Stage.STUCK, BASELINE, {LimitMode.SOFT})
    shown = undoing(world)
    assert shown.not_undone == (
        "set_soft: the quotas have their earlier values, but limits are soft; restore failed: restore did not answer",
    )
    assert (shown.values, shown.undone[-1]) == ((), SOFT_AGAIN)
    assert "the quotas stay at their earlier values; limits stay soft" in does(world, "close")
    retry_keeps_its_word(world)
    assert by_team(world)["b"] is LimitMode.HARD


def test_a_breach_that_goes_back_to_the_baseline_is_not_called_backed() -> None:
    world = stuck("breach", K.RELEASE, rollback_to="baseline")
    assert world.values == BASELINE
    assert undoing(world).undone[-1] == "set_soft: the quotas have their earlier values, and the limits are soft"
    assert "the quotas stay at their earlier values; limits stay soft" in does(world, "close")


def test_with_its_attempts_spent_a_breach_promises_no_next_one() -> None:
    world = stuck("breach", K.SOFTEN, attempts=1)
    assert f"then {OPEN}." in does(world, "retry")
    world.say(Command.RETRY)
    world.healthy(361)
    world.wait("30d")
    assert world.is_in(Stage.ROLLED_BACK)


def test_a_next_attempt_that_is_promised_comes() -> None:
    world = stuck("breach", K.SOFTEN)
    world.say(Command.RETRY)
    world.healthy(361)
    world.until(Stage.MONITORED)
    assert world.r.attempt == 2


# --- others -----------------------------------------------------------------------------------


def test_a_quota_that_others_had_changed_is_told_at_their_value_and_left_alone() -> None:
    world = monitored()
    world.foreign("b", 90)
    world.fail(K.RESTORE, "Refusal")
    world.say(Command.ROLLBACK)
    assert undoing(world).values == (ValueLeft(team="b", gpus=90, target_gpus=161, by_others=True),)
    assert "b stays at 90, not 161" in does(world, "close")
    closed = copy.deepcopy(world)
    close_keeps_its_word(closed, {})
    retry_keeps_its_word(world)
    assert world.values == {"a": 200, "b": 90}
    assert undoing(world).undone[-1] == f"{RESTORED}, except b: others changed it, and Backstop left it alone"


def test_a_breach_too_tells_a_quota_that_others_had_changed_at_their_value() -> None:
    world = monitored()
    world.foreign("b", 104)
    world.fail(K.RESTORE, "Refusal")
    world.healthy(300)
    world.wait("11m")
    assert undoing(world).values == (
        ValueLeft(team="a", gpus=200, target_gpus=196),
        ValueLeft(team="b", gpus=104, target_gpus=106, by_others=True),
    )
    assert "runs restore again and nothing else (a to 196); then" in does(world, "retry")
    assert "b stays at 104, not 106" in does(world, "close")
    world.say(Command.RETRY)
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, {"a": 196, "b": 104})


def test_a_quota_that_others_gave_back_meanwhile_is_restored_like_the_rest() -> None:
    world = monitored()
    world.foreign("b", 90)
    world.fail(K.RESTORE, "Refusal")
    world.fail(K.SOFTEN, "Refusal")
    world.say(Command.ROLLBACK)
    world.watch_runs = False
    world.foreign("b", 106)
    world.fail(K.SOFTEN, "Refusal")
    world.say(Command.RETRY)
    assert (world.stage, world.values) == (Stage.STUCK, BASELINE)
    assert undoing(world).values == ()
    assert RESTORED in undoing(world).undone
    world.fail(K.RESTORE, "Refusal")  # what was known of others then is not said again
    world.say(Command.RETRY)
    assert (world.stage, undoing(world).values) == (Stage.STUCK, ())


@pytest.mark.parametrize("how", ["rollback", "breach"])
def test_a_quota_that_others_change_during_the_rollback_is_named(how: str) -> None:
    world = monitored()
    world.fail(K.SOFTEN, "Refusal")

    def lowered() -> None:
        world.quotas["b"] = world.quotas["b"].model_copy(update={"gpus": 70})
        world.generation += 1

    world.meanwhile("restore", lowered)
    if how == "breach":
        world.healthy(300)
        world.wait("11m")
    else:
        world.say(Command.ROLLBACK)
    assert (world.stage, world.values["b"]) == (Stage.STUCK, 70)
    shown = undoing(world)
    restored = (
        BACKED_NOW if how == "breach" else RESTORED
    ) + ", except b: others changed it, and Backstop left it alone"
    assert restored in shown.undone
    assert (
        "because `restore` wrote them, except b: others changed it, and Backstop left it alone; soften failed"
        in shown.not_undone[0]
    )
    if how == "rollback":
        assert shown.values == (ValueLeft(team="b", gpus=70, target_gpus=161, by_others=True),)
        assert "b stays at 70, not 161" in does(world, "close")
    world.say(Command.RETRY)
    assert (world.stage, world.values["b"]) == (Stage.ROLLED_BACK, 70)


def test_what_others_changed_and_a_person_accepted_is_not_left_to_undo() -> None:
    world = monitored()
    world.foreign("b", 90)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    world.fail(K.RESTORE, "Refusal")
    world.say(Command.ROLLBACK)
    assert undoing(world).values == ()
    retry_keeps_its_word(world)
    assert world.values == {"a": 200, "b": 90}


def test_three_hundred_quotas_are_told_in_few_words() -> None:
    many = [quota(f"t{n:03d}", 10, busy=5) for n in range(300)]
    world = stuck("rollback", K.RESTORE, quotas=many, islands={"main": (3000, 3000)}, every_state=False)
    assert len(undoing(world).values) == 300
    for choice in undoing(world).choices:
        assert "t002" in choice.does
        assert "t003" not in choice.does
        assert " and 297 more" in choice.does
        assert len(choice.does) < 400


# --- the notice -------------------------------------------------------------------------------


def notice_of(world: World) -> str:
    """The last call for help, as its reader gets it."""
    return render([n for n in world.sent if n.kind is NoticeKind.STUCK][-1])[1]


@pytest.mark.parametrize("how", ["rollback", "breach"])
@pytest.mark.parametrize("kind", BACK)
def test_the_notice_says_what_the_status_says(kind: EffectKind, how: str) -> None:
    world = stuck(how, kind)
    shown, body = undoing(world), notice_of(world)
    told = [*shown.not_undone, *map(value_text, shown.values)]
    assert "What is not undone:\n" + "".join(f"- {text}\n" for text in told) + "\n" in body
    for choice in shown.choices:
        assert f"    {choice.line}\n{choice.does[0].upper()}{choice.does[1:]}.\n" in body


def test_the_notice_of_a_superseded_rollout_offers_no_retry() -> None:
    world = monitored()
    world.meanwhile("restore", lambda: setattr(world, "superseded", True))
    world.say(Command.ROLLBACK)
    body = notice_of(world)
    assert "b may have 106 GPUs, not 161" in body
    assert re.findall(r"^    backstop (\w+)", body, re.MULTILINE) == ["close", "launch"]


def test_the_notice_of_many_quotas_is_bounded_and_says_where_the_rest_is() -> None:
    many = [quota(f"t{n:03d}", 10, busy=5) for n in range(300)]
    body = notice_of(stuck("rollback", K.RESTORE, quotas=many, islands={"main": (3000, 3000)}, every_state=False))
    assert body.count(" GPUs, not ") == 20
    assert "- t019 has 8 GPUs, not 10\n- and 280 more quotas: backstop status c1 --json\n" in body


# --- what nobody knows --------------------------------------------------------------------------


def a_step_fails(kind: EffectKind, *, landed: bool, **more: Any) -> World:
    """The forward call gets no answer, and neither does its inverse."""
    world = World(**{**QUICK, **more})
    world.fail(kind, landed=landed)
    world.fail(BACK[3 - FORWARD.index(kind)], "Refusal")
    world.start()
    world.until(Stage.STUCK)
    return world


@pytest.mark.parametrize("landed", [False, True], ids=["never-landed", "answer-lost"])
@pytest.mark.parametrize(
    ("kind", "may"),
    [
        (K.RESERVE, "reserve: the freed capacity may be reserved"),
        (K.SET_SOFT, "set_soft: the quotas may have the rollout's values"),
        (K.HARDEN, "harden: the limits are as before the rollout because `restore` wrote them"),
        (K.FOLLOW, "follow: the flex pool may follow health"),
    ],
)
def test_what_was_never_answered_may_stand(kind: EffectKind, may: str, landed: bool) -> None:
    world = a_step_fails(kind, landed=landed)
    shown = undoing(world)
    assert shown.actor == "backstop"
    assert [text.split("; ")[0] for text in shown.not_undone] == [may]
    unsure = (ValueLeft(team="b", gpus=106, target_gpus=161, unsure=True),) if kind is K.SET_SOFT else ()
    assert shown.values == unsure
    closed, values, modes = copy.deepcopy(world), world.values, by_team(world)
    assert ("b stays as it is, maybe at 106; limits stay as they are" in does(world, "close")) is bool(unsure)
    closed.say(Command.CLOSE, reason="by hand")
    assert (closed.values, by_team(closed), closed.limit, closed.follows) == (values, modes, None, False)
    world.say(Command.RETRY)
    assert (world.stage, world.values) == (Stage.ROLLED_BACK, BASELINE)
    assert (world.modes, world.limit, world.follows) == ({LimitMode.HARD}, None, False)


def test_values_that_were_never_written_are_sure_once_restore_has_found_them() -> None:
    world = World(**QUICK)
    world.fail(K.SET_SOFT)
    world.fail(K.RELEASE, "Refusal")
    world.start()
    world.until(Stage.STUCK)
    assert (undoing(world).values, undoing(world).undone) == ((), (RESTORED,))


def test_hard_limits_that_were_never_answered_may_be_hard() -> None:
    world = World(**QUICK)
    world.fail(K.HARDEN)
    world.fail(K.SOFTEN, "Refusal")
    world.fail(K.RESTORE, "Refusal")
    world.start()
    world.until(Stage.STUCK)
    assert undoing(world).not_undone[0].startswith("harden: the limits may be hard; soften failed")
    assert "b stays at 106, not 161; limits stay as they are" in does(world, "close")


def test_what_is_answered_at_last_is_no_longer_in_doubt() -> None:
    world = a_step_fails(K.SET_SOFT, landed=True)
    world.say(Command.RETRY)
    world.say(Command.RETRY)
    world.until(Stage.BUFFERED)
    world.fail(K.RESTORE, "Refusal")
    world.say(Command.ROLLBACK)
    assert undoing(world).values == (ValueLeft(team="b", gpus=106, target_gpus=161),)
    assert world.r.unanswered == ()


# --- superseded -----------------------------------------------------------------------------------

OWNED = (
    "ends this rollout and writes nothing: quotas, limits and reserved GPUs stay as they are, "
    "for the rollout that owns the cluster now"
)


def superseded(world: World, *texts: str, values: Iterable[ValueLeft] = ()) -> UndoStatus:
    shown = undoing(world)
    assert shown.not_undone == texts
    assert shown.values == tuple(values)
    assert shown.commands == ("close",)
    assert [(c.command, c.line) for c in shown.choices] == [
        ("close", "backstop close c1 --reason '...'"),
        ("launch", "backstop launch c1 --adopt --reason '...'"),
    ]
    assert shown.choices[0].does == OWNED
    assert shown.choices[1].does.startswith(
        "for after the close, and only if no rollout of the cluster runs in another Temporal"
    )
    assert world.needs == (
        "a newer rollout owns the cluster (somebody newer owns the cluster). Give: backstop close c1 --reason '...'"
    )
    assert "backstop launch" not in world.needs
    with pytest.raises(Refused, match="only `close` is possible"):
        world.say(Command.RETRY)
    state = (world.values, world.modes, world.limit, world.follows, len(world.effects))
    said = world.say(Command.CLOSE, reason="theirs")
    assert said == "closed; nothing is written, and the cluster is left to the rollout that owns it now"
    assert (world.stage, state) == (
        Stage.CLOSED,
        (world.values, world.modes, world.limit, world.follows, len(world.effects)),
    )
    return shown


MAY = {
    K.RESERVE: "reserve: the freed capacity may be reserved",
    K.SET_SOFT: "set_soft: the quotas may have the rollout's values",
    K.HARDEN: "harden: the limits may be hard",
    K.FOLLOW: "follow: the flex pool may follow health",
}
MAYBE_CUT = ValueLeft(team="b", gpus=106, target_gpus=161, unsure=True)


@pytest.mark.parametrize("kind", FORWARD)
def test_superseded_on_the_way_nothing_is_known_for_sure(kind: EffectKind) -> None:
    made = FORWARD.index(kind)
    world = World(**QUICK)
    world.meanwhile(kind.value, lambda: setattr(world, "superseded", True))
    world.start()
    world.until(Stage.STUCK)
    stands = [MAY[k] for k in reversed(FORWARD[: made + 1])]
    shown = superseded(world, *stands, values=[MAYBE_CUT] if made > 1 else [])
    assert (shown.why, shown.actor, shown.reason) == ("superseded", "ledger", "somebody newer owns the cluster")
    assert shown.undone == ()


def test_superseded_during_an_undo_what_was_undone_is_told() -> None:
    world = monitored()
    world.meanwhile("restore", lambda: setattr(world, "superseded", True))
    world.say(Command.ROLLBACK)
    shown = superseded(world, MAY[K.SET_SOFT], MAY[K.RESERVE], values=[MAYBE_CUT])
    assert (shown.why, shown.actor) == ("undo", "tpm")
    assert shown.reason == "because; then superseded: somebody newer owns the cluster"
    assert shown.undone == (FOLLOWS_NOT, SOFT_AGAIN)


def test_a_close_that_is_superseded_calls_nobody_to_a_command_that_is_refused() -> None:
    world = stuck("rollback", K.RELEASE)
    told = len(world.told)
    world.meanwhile("close", lambda: setattr(world, "superseded", True))
    world.say(Command.CLOSE, reason="by hand")
    assert world.is_in(Stage.CLOSED)
    assert world.told[told:] == [(NoticeKind.HELD, "tpm")]


def test_a_close_that_fails_is_told_as_was_promised() -> None:
    world = stuck("rollback", K.RELEASE)
    assert "the reserved GPUs are released (Backstop notifies you if that fails)" in does(world, "close")
    world.fail(K.CLOSE, "Refusal")
    world.say(Command.CLOSE, reason="by hand")
    assert (world.stage, world.limit, world.told_of(NoticeKind.HELD)) == (Stage.CLOSED, 306, ["tpm"])


# --- rehearsals, names ------------------------------------------------------------------------------


def test_a_rehearsal_never_says_that_something_stands() -> None:
    world = stuck("rollback", K.RESTORE, shadow=True)
    shown = undoing(world)
    assert shown.undone == ("follow: rehearsed", "harden: rehearsed", "reserve: rehearsed")
    assert shown.not_undone == ("set_soft: the rehearsal of restore failed: restore did not answer",)
    assert shown.values == ()
    assert does(world, "close") == "ends the rehearsal; no quota was ever written"
    assert does(world, "retry") == f"rehearses restore again and nothing else; then {OPEN}. {MEND}"
    assert world.values == BASELINE


def test_the_lines_can_be_pasted_into_a_shell() -> None:
    world = stuck("rollback", K.RESTORE)
    world.r = world.r.but(cluster="h100 a; rm")
    assert [c.line for c in undoing(world).choices] == [
        "backstop retry 'h100 a; rm' --reason '...'",
        "backstop close 'h100 a; rm' --reason '...'",
    ]
    assert "backstop retry 'h100 a; rm'" in needs_of(world.r, world.now)


def test_nothing_is_offered_before_it_is_stuck() -> None:
    world = monitored(quotas=TWO)
    seen: list[UndoStatus] = []
    world.fail(K.SOFTEN, "Refusal")
    world.meanwhile("restore", lambda: seen.append(undoing(world)))
    world.say(Command.ROLLBACK)
    (halfway,) = seen
    assert (halfway.left, halfway.choices, halfway.commands, halfway.values) == (("set_soft", "reserve"), (), (), ())
    assert halfway.undone == (FOLLOWS_NOT,)
    assert halfway.not_undone == ("harden: the limits are still hard; soften failed: soften did not answer",)
