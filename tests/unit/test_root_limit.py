"""The limit above all quotas follows when a person accepts other people's values, and promises fit under it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from models.rollout.effects import EffectKind, Receipt
from models.rollout.messages import EffectRequest
from models.rollout.stages import Command, Stage
from tests.unit.test_drift_grid import FLAT, SLOW, Bounded, doctor_says


class Rooted(Bounded):
    """Slurm's root: while a rollout is open it allows what Backstop's writes named last, and 48 or less at most."""

    most = 1000
    keeps: Mapping[str, int] = {}
    """The baseline that the last effect brought to be kept."""

    def apply(self, request: EffectRequest) -> Receipt:
        receipt = super().apply(request)
        kept = {t: g for t, g in vars(self).setdefault("named", {}).items() if t in self.quotas}
        self.named = {**kept, **{w.team: w.gpus for w in request.change.writes}}
        self.keeps = {} if request.baseline is None else {q.team: q.gpus for q in request.baseline.quotas}
        if request.change.kind is not EffectKind.FOLLOW:
            self.bound = min(self.most, sum(self.named.values()))
        return receipt


def rooted(stage: Stage, most: int = 1000, **policy: Any) -> Rooted:
    soaks = {Stage.BUFFERED: {}, Stage.ENFORCED: {"soak_buffered": "0s"}}.get(
        stage, {"soak_buffered": "0s", "soak_enforced": "0s"}
    )
    world = Rooted(FLAT, **{**SLOW, **soaks, **policy})
    world.most = most
    world.start()
    world.until(stage)
    assert (world.bound, world.values) == (40, {"evals": 13, "infra": 13, "training": 14})
    return world


ACCEPTED: dict[str, tuple[dict[str, int | None], int]] = {
    "raised": ({"evals": 18}, 45),
    "added": ({"newteam": 8}, 48),
    "raised and added": ({"evals": 14, "newteam": 5}, 46),
    "lowered": ({"evals": 3}, 30),
    "removed": ({"evals": None}, 27),
    "removed and added": ({"evals": None, "newteam": 20}, 47),
}


@pytest.mark.parametrize("what", ACCEPTED)
@pytest.mark.parametrize("stage", [Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED])
def test_what_a_person_accepts_is_promised_at_once_within_a_root_that_fits_it(stage: Stage, what: str) -> None:
    changes, together = ACCEPTED[what]
    world, moved = rooted(stage), len(rooted(stage).moves)
    for team, gpus in changes.items():
        world.foreign(team, gpus, by="root")
    assert world.bound == 40, "nobody has agreed yet"
    values, effects = world.values, len(world.effects)
    assert world.say(Command.RESOLVE, hold="drift", how="accept").endswith(
        "changes to match once hardware backs the values"
    )
    assert (world.bound, world.values) == (together, values)
    assert world.effects[effects:] == [EffectKind.SET_SOFT]
    assert len(world.moves) == moved, "no quota has moved: nothing counts against the blast radius"
    stands = {t: g for t, g in {"evals": 16, "infra": 16, "training": 16, **changes}.items() if g is not None}
    assert world.keeps == stands, "an undo by whoever adopts it leaves what was accepted"
    fitted = "set_soft: no quota moves; the limit on the sum of all quotas now fits the values that a person accepted"
    assert fitted in world.story
    assert world.needs == "" or stage is not Stage.MONITORED
    if stage is not Stage.BUFFERED:
        assert (world.promises, doctor_says(world)) == (values, [])
    world.say(Command.ABORT)
    assert world.values == stands, "theirs is left alone"


def test_what_hardware_does_not_back_leaves_the_root_as_it_is_until_it_does() -> None:
    world = rooted(Stage.MONITORED, breach_after="9d")
    world.foreign("newteam", 20, by="root")
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert (world.bound, world.promises) == (40, {})
    (text,) = doctor_says(world)
    assert "is 40 GPUs, and the quotas need 60: the limit stays while healthy GPUs do not back them" in text
    world.foreign("newteam", 8, by="root")
    assert (world.bound, world.holds) == (40, {"drift"}), "another change is another question"
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert (world.bound, sum(world.promises.values())) == (48, 48)


def test_a_limit_that_the_root_had_before_is_not_raised_and_that_is_said() -> None:
    world = rooted(Stage.MONITORED, most=40)
    world.foreign("newteam", 8, by="root")
    effects = len(world.effects)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    world.wait("2d")
    assert (world.bound, world.promises, world.effects[effects:]) == (40, {}, [EffectKind.SET_SOFT]), "tried once"
    (text,) = doctor_says(world)
    assert "the quotas need 48: lower these quotas in the quota system. To keep the present value, close" in text


def test_others_change_a_quota_again_as_the_accepted_ones_are_written() -> None:
    world = rooted(Stage.MONITORED)
    world.foreign("newteam", 4, by="root")

    def raises_once_more() -> None:
        world.unnoticed = True
        world.foreign("evals", 16, by="root")

    world.meanwhile("set_soft", raises_once_more)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert (world.bound, world.holds, world.stage) == (40, {"drift"}, Stage.MONITORED)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert (world.bound, sum(world.promises.values())) == (47, 47)


@pytest.mark.parametrize("error", ["Refusal", "Unavailable", "BlastRadius"])
def test_a_root_that_cannot_be_written_undoes_nothing(error: str) -> None:
    world = rooted(Stage.MONITORED)
    world.foreign("newteam", 4, by="root")
    world.fail(EffectKind.SET_SOFT, error)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert any(text.startswith("set_soft failed: ") for text in world.story), "it was tried"
    assert (world.stage, world.values["newteam"], world.promises) == (Stage.MONITORED, 4, {})
    assert "the quotas need 44: lower these quotas" in doctor_says(world)[0]


def test_under_restore_an_accepted_account_is_within_the_root() -> None:
    world = rooted(Stage.MONITORED, on_drift="restore")
    world.foreign("newteam", 8, by="root")
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert (world.bound, sum(world.promises.values())) == (48, 48)
