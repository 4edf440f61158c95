"""Every order of two outside events, from each place that an exploration begins at.

Three events deep, and more, by hand: `python -m tests.property.explore --depth 3`.
"""

from __future__ import annotations

import pytest

from models.rollout import effect_reducers
from models.rollout.stages import TRANSITIONS
from models.rollout.state import Rollout
from tests.property.explore import SETTINGS, Exploration, Found, remembering
from tests.tried import TRIED

DEPTH = 2
BY_DAY = ("rollback", "tried again", "merged", "merged, undone", "merged, restored")
REACHED: set[object] = set()


def nightly(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("name", BY_DAY[0]) not in BY_DAY or "together" in item.name


def explored(name: str) -> Found:
    with remembering():
        return Exploration(SETTINGS[name], DEPTH).run()


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_that_may_happen_breaks_an_invariant(name: str) -> None:
    found = explored(name)
    assert found.violations == []
    assert found.states > 20
    REACHED.update(found.transitions)
    TRIED["states of the state machine explored"] += found.states


def test_together_they_took_every_transition() -> None:
    if len(REACHED) < len(TRANSITIONS):  # one of them ran alone
        for name in SETTINGS:
            REACHED.update(explored(name).transitions)
    assert set(TRANSITIONS) <= REACHED


def test_an_exploration_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback that forgets one inverse is seen."""
    real = effect_reducers.begin_effect

    def forgetful(rollout: Rollout, *more: object) -> object:
        begun, change = real(rollout, *more)  # type: ignore[arg-type]
        return begun.but(standing=begun.standing[:-1]), change

    monkeypatch.setattr(effect_reducers, "begin_effect", forgetful)
    assert explored("rollback").violations
