"""The flat state of earlier versions reads as the same grouped state."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from models.rollout.effects import EffectKind
from models.rollout.state import Rollout
from tests.unit.pure_world import T0, World


def flat(world: World, **more: object) -> dict[str, object]:
    """The state of a rollout as version 0.1.0 of November 2026 carried it, at its start."""
    rollout = world.r.model_dump(mode="json")
    groups = ("stay", "approval", "announced", "flex", "granting", "undo", "post", "warned")
    kept = {name: value for name, value in rollout.items() if name not in groups}
    times = {"entered_at": T0.isoformat(), "soak_since": T0.isoformat()}
    return {**kept, **times, "realigning": False, "proposing": False, "receipts": [], **more}


def test_what_was_flat_is_grouped_by_lifetime() -> None:
    world = World()
    world.start()
    plan = world.r.plan
    assert plan is not None
    assert world.r.envelope is not None
    envelope = world.r.envelope.model_dump(mode="json")
    state = Rollout.model_validate(
        flat(
            world,
            replan="again",
            waived=True,
            done=["reserve"],
            aiming=["a"],
            exempt=True,
            restoring=True,
            realigning=True,
            proposing=True,
            plan_before=plan.model_dump(mode="json"),
            envelope=envelope,
            approved_by="tpm",
            told_cuts={"a": 3},
            acks=["a"],
            undelivered=["b: x"],
            flex_gpus=55,
            flex_since=T0.isoformat(),
            serial=17,
            mail_trouble="later",
            noted="planned",
            considered_gpus=300,
            derived_at=T0.isoformat(),
            granting={"request": "r1", "team": "a", "gpus": 8, "actor": "x", "reason": "y"},
            granting_begun=True,
            order={"why": "undo", "actor": "x", "reason": "y", "at": T0.isoformat(), "target": {"a": 200}},
            owed=["set_soft"],
            undone=["harden"],
            stuck_on=[{"kind": "follow", "reason": "z"}],
        )
    )
    stay = state.stay
    assert (stay.since, stay.soak_since, stay.replan, stay.waived) == (T0, T0, "again", True)
    assert (stay.done, stay.aiming, stay.exempt, stay.restoring) == ((EffectKind.RESERVE,), ("a",), True, True)
    assert stay.realigning is not None
    assert (stay.realigning.before, stay.realigning.proposed) == (plan, True)
    assert (stay.outlook.considered_gpus, stay.outlook.derived_at) == (300, T0)
    assert (state.envelope, state.approved_by) == (world.r.envelope, "tpm")
    assert (state.announced.cuts, state.announced.acks, state.announced.undelivered) == ({"a": 3}, ("a",), ("b: x",))
    assert (state.flex.gpus, state.flex.more_since) == (55, T0)
    assert (state.post.serial, state.post.trouble, state.post.noted) == (17, "later", "planned")
    assert state.grant_order is not None
    assert (state.grant_order.request, state.grant_begun) == ("r1", True)
    assert state.undo is not None
    assert (state.undo.target, state.owed, state.undone) == ({"a": 200}, (EffectKind.SET_SOFT,), (EffectKind.HARDEN,))
    assert [(u.kind, u.reason) for u in state.stuck_on] == [(EffectKind.FOLLOW, "z")]


def test_what_was_not_there_is_not_there() -> None:
    state = Rollout.model_validate(flat(World(), granting=None, order=None, envelope=None, approved_by=""))
    assert (state.granting, state.undo, state.approval, state.stay.realigning) == (None, None, None, None)


def test_a_grouped_state_crosses_as_it_is_and_an_unknown_field_is_refused() -> None:
    world = World()
    world.start()
    assert Rollout.model_validate_json(world.r.model_dump_json()) == world.r
    with pytest.raises(ValidationError, match="flexx"):
        Rollout.model_validate(flat(world, flexx=1))


def test_a_misspelt_change_is_our_bug_and_says_so() -> None:
    with pytest.raises(AttributeError, match="Rollout has no field realigning"):
        World().r.but(realigning=True)
