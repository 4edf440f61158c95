"""The tables of a bring-up: total, legal, and docs/bringup.md's diagram."""

from __future__ import annotations

from itertools import product

import pytest

from models.bringup.stages import (
    BRINGUP_ANSWERS,
    BRINGUP_TRANSITIONS,
    BRINGUP_WAY,
    BringupCommand,
    BringupStage,
)
from models.lifecycle.state_machine import Refused

P, R, V, M = BRINGUP_WAY
B, C, CANCELLED = BringupStage.BLOCKED, BringupStage.CANCELLING, BringupStage.CANCELLED
U, RETIRED = BringupStage.RETIRING, BringupStage.RETIRED

DIAGRAM = {
    *((P, R), (R, V), (V, M), (M, U), (U, RETIRED)),
    *((R, B), (V, B), (B, R), (B, V)),
    *((P, C), (R, C), (V, C), (B, C), (C, CANCELLED)),
}
IN_WORDS = {(C, B), (B, C), (U, B), (B, U)}
"""`blocked` remembers where it came from: a retry goes on in that direction, forward or undoing."""


def test_every_pair_has_one_answer() -> None:
    assert set(BRINGUP_ANSWERS) == set(product(BringupStage, BringupCommand))


def test_the_transitions_are_those_of_the_design() -> None:
    assert BRINGUP_TRANSITIONS == DIAGRAM | IN_WORDS


@pytest.mark.parametrize("stage", BringupStage)
def test_a_command_is_a_legal_transition_or_a_refusal_that_names_only_what_would_be_taken(stage: BringupStage) -> None:
    answers = {command: BRINGUP_ANSWERS[stage, command] for command in BringupCommand}
    for command, after in answers.items():
        if isinstance(after, Refused):
            named = [c for c in BringupCommand if f"`{c}`" in after.reason]
            assert all(not isinstance(answers[c], Refused) for c in named), (command, after.reason)
        else:
            assert after is stage or (stage, after) in BRINGUP_TRANSITIONS


@pytest.mark.parametrize("stage", [CANCELLED, RETIRED])
def test_an_ended_one_takes_nothing(stage: BringupStage) -> None:
    assert all(isinstance(BRINGUP_ANSWERS[stage, command], Refused) for command in BringupCommand)
