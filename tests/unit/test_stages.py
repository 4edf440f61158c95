"""The tables of the state machine: total, legal, and the diagram of docs/concepts.md."""

from __future__ import annotations

import re
from itertools import product

import pytest

from models.lifecycle.state_machine import Refused
from models.rollout.effect_table import INVERSE, STEP_FROM, STEPS
from models.rollout.effects import EffectKind
from models.rollout.stages import ANSWERS, TRANSITIONS, Command, Stage, UndoOr, answer

P, B, E, M = Stage.PLANNED, Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED
ROLLING, BACK, STUCK, CLOSED, ABORTED = (
    Stage.ROLLING_BACK,
    Stage.ROLLED_BACK,
    Stage.STUCK,
    Stage.CLOSED,
    Stage.ABORTED,
)

DIAGRAM = {
    (P, B),
    (B, E),
    (E, M),
    (M, CLOSED),
    (P, ABORTED),
    (B, ROLLING),
    (E, ROLLING),
    (M, ROLLING),
    (ROLLING, BACK),
    (ROLLING, STUCK),
    (STUCK, ROLLING),
    (BACK, P),
}
"""The arrows of docs/concepts.md, "A rollout"."""

IN_WORDS = {
    (P, ROLLING): "a failed or aborted first step; a person's undo after a breach rollback, whose effects stand",
    (BACK, ROLLING): "the same, ordered before the next attempt",
    (BACK, ABORTED): "`abort` undoes and ends",
    (BACK, CLOSED): "`close` ends a rollout that is not tried again",
    (STUCK, CLOSED): "`close` ends it with what is left to undo",
    (P, STUCK): "superseded",
    (B, STUCK): "superseded",
    (E, STUCK): "superseded",
    (M, STUCK): "superseded, while a change in place is written",
}
"""Arrows that docs/design.md, "The state machine", says in words."""


def test_every_pair_has_one_answer() -> None:
    assert set(ANSWERS) == set(product(Stage, Command))


@pytest.mark.parametrize("stage", Stage)
def test_a_command_is_a_legal_transition_or_a_refusal_that_names_only_what_would_be_taken(stage: Stage) -> None:
    answers = {(c, stand): answer(stage, c, effects_stand=stand) for c, stand in product(Command, (False, True))}
    for (command, effects_stand), after in answers.items():
        if isinstance(after, Refused):
            assert len(after.reason.split()) > 2
            advised = set(re.findall(r"`(\w+)`", after.reason))
            assert advised <= set(Command) - {command}
            assert not [a for a in advised if isinstance(answers[Command(a), effects_stand], Refused)]
        else:
            assert after is stage or (stage, after) in TRANSITIONS


def test_the_arrows_are_those_of_the_design() -> None:
    assert DIAGRAM | IN_WORDS.keys() == TRANSITIONS


@pytest.mark.parametrize("stage", [s for s in Stage if s.has_ended])
def test_an_ended_rollout_takes_no_command_and_goes_nowhere(stage: Stage) -> None:
    assert all(isinstance(ANSWERS[stage, command], Refused) for command in Command)
    assert not [after for before, after in TRANSITIONS if before is stage]


def test_what_a_command_undoes_depends_only_on_whether_effects_stand() -> None:
    pairs = {pair for pair, cell in ANSWERS.items() if isinstance(cell, UndoOr)}
    assert pairs == set(product((P, BACK), (Command.ABORT, Command.ROLLBACK)))
    for stage, command in pairs:
        assert answer(stage, command, effects_stand=True) is ROLLING


def test_no_command_stops_a_rollback() -> None:
    for command in Command:
        found = ANSWERS[ROLLING, command]
        assert found is ROLLING or isinstance(found, Refused)


def test_commands_that_change_the_stage() -> None:
    found = {(s, c, cell) for (s, c), cell in ANSWERS.items() if isinstance(cell, Stage) and cell is not s}
    assert found == {
        *((s, c, ROLLING) for s in (B, E, M) for c in (Command.ABORT, Command.ROLLBACK)),
        (BACK, Command.RETRY, P),
        (STUCK, Command.RETRY, ROLLING),
        *((s, Command.CLOSE, CLOSED) for s in (M, BACK, STUCK)),
    }


def test_steps_lead_from_planned_to_monitored_one_after_the_other() -> None:
    assert [(s.source, s.target) for s in STEPS] == [(P, B), (B, E), (E, M)]
    assert [STEP_FROM[s.source] for s in STEPS] == list(STEPS)
    assert len({s.gate for s in STEPS}) == len(STEPS)


def test_each_effect_is_made_by_one_step_and_has_its_inverse_beside_it() -> None:
    made = [kind for step in STEPS for kind in step.effects]
    assert made == list(INVERSE)
    assert len({*INVERSE, *INVERSE.values()}) == 2 * len(made)
    assert {*INVERSE, *INVERSE.values(), EffectKind.GRANT, EffectKind.CLOSE} == {*EffectKind}


def test_the_guard_watches_exactly_what_a_step_has_set() -> None:
    assert {s for s in Stage if s.is_guarded} == {step.target for step in STEPS}
    assert {s for s in Stage if s.promises} == {E, M}
