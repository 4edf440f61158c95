"""Every effect of a rollout on one screen: its call, its inverse, and the sentences that people read about it.

Theory of operation. A step makes its effects in this order; a rollback undoes those in force in reverse order. Backstop
notes an effect as owed before it attempts `do`, so `undo` must work even if `do` never ran. An inverse is retried
without limit, and no blast radius stops it. Source: docs/design.md, "The state machine", "How a rollback runs".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from models.cluster.readings import LimitMode
from models.rollout.effects import EffectKind
from models.rollout.stages import Stage

_K = EffectKind


@dataclass(frozen=True)
class Said:
    """The sentences about one effect: made, and of a rollback that finished, or could not.

    `made`: it has landed, and no quota has moved. `undone`: its inverse has landed; {goal}, {limits} and {others} are
    filled in from the rollout. `stands`: it is not undone. `may_stand`: its call was never answered, or somebody newer
    owns the cluster.
    """

    made: str
    undone: str
    stands: str
    may_stand: str


class StandsOn(StrEnum):
    """The evidence that the ledger, or a source, must have before the call is made. Source: docs/adr/0057."""

    APPROVAL = "approval"
    """The plan's warrant, or that of an envelope that holds the plan; to write over others: the last receipts."""
    WAY_BACK = "way back"
    """The kept baseline, with the ticket of an abort or rollback or a failed forward effect; or a breach that an
    activity has aimed from the health and baseline that it read."""
    HEALTH = "health"
    """An approval for the first call; for later ones the health that the activity reads itself."""
    DECISION = "decision"
    """The decision on the request, or the entry that owes quotas; to end a grant: its GPUs and date."""
    TICKET = "ticket"
    """The ticket of the command itself."""


@dataclass(frozen=True)
class Effect:
    """An effect and its inverse. `at`: the stage whose step makes it. `stands_on`: the evidence for `do` and `undo`."""

    at: Stage
    do: EffectKind
    undo: EffectKind
    said: Said
    stands_on: tuple[StandsOn, StandsOn] = (StandsOn.APPROVAL, StandsOn.WAY_BACK)
    said_in_a_breach: Said | None = None
    """Sentences after a breach rollback, which undoes the effect only in part; None: the same as `said`."""
    kept_in_a_breach: bool = False
    """The effect stays in force after a breach rollback, with other values, because the baseline is not restored."""
    limited: bool = True
    """`do` counts against the blast radius. `undo` never does, because it restores earlier values."""
    reserves: bool = False
    """Both `do` and `undo` write the reservation."""
    modes: tuple[LimitMode, LimitMode] | None = None
    """The mode of all quotas after `do` and after `undo`; None: unchanged."""
    follows: bool = False
    """Between `do` and `undo`, the flex pool follows health."""


EFFECTS: tuple[Effect, ...] = (
    Effect(
        Stage.PLANNED,
        do=_K.RESERVE,  # + nobody else may raise a quota into what is freed
        undo=_K.RELEASE,  # - they may again
        kept_in_a_breach=True,
        reserves=True,
        said=Said(
            made="the freed capacity is reserved: no quota can be raised into it",
            undone="the freed capacity is released",
            stands="the freed capacity is still reserved: no quota can be raised into it",
            may_stand="the freed capacity may be reserved",
        ),
        said_in_a_breach=Said(
            made="the reserved GPUs match the rollout's values",
            undone="the reserved GPUs match the restored values",
            stands="the reserved GPUs still match the rollout's values",
            may_stand="the reserved GPUs may still match the rollout's values",
        ),
    ),
    Effect(
        Stage.PLANNED,
        do=_K.SET_SOFT,  # + quotas get the plan's values; jobs up to the earlier ones are still admitted, as flex
        undo=_K.RESTORE,  # - they get the baseline's values and modes, or in a breach what hardware backs, soft
        kept_in_a_breach=True,
        said=Said(
            made="no quota changes",
            undone="the quotas have {goal}, and the limits are {limits}{others}",
            stands="the quotas still have the rollout's values",
            may_stand="the quotas may have the rollout's values",
        ),
    ),
    Effect(
        Stage.BUFFERED,
        do=_K.HARDEN,  # + jobs beyond a quota are not admitted
        undo=_K.SOFTEN,  # - they are, as flex
        modes=(LimitMode.HARD, LimitMode.SOFT),
        said=Said(
            made="the limits are hard",
            undone="the limits are soft again",
            stands="the limits are still hard",
            may_stand="the limits may be hard",
        ),
    ),
    Effect(
        Stage.ENFORCED,
        do=_K.FOLLOW,  # + the flex pool grows and shrinks with healthy GPUs
        undo=_K.UNFOLLOW,  # - it is what the scheduler makes of it
        follows=True,
        stands_on=(StandsOn.HEALTH, StandsOn.WAY_BACK),
        said=Said(
            made="the flex pool follows health",
            undone="the flex pool no longer follows health",
            stands="the flex pool still follows health",
            may_stand="the flex pool may follow health",
        ),
    ),
)
"""Two more calls are no effects of a step and have no inverse: GRANT (more quota by request, or the end of it) and
CLOSE (ends the rollout in the quota system: the reservation goes, the values stay)."""

EFFECT: dict[EffectKind, Effect] = {effect.do: effect for effect in EFFECTS}
"""Effects by their forward call."""
INVERSE: dict[EffectKind, EffectKind] = {effect.do: effect.undo for effect in EFFECTS}
UNDOES: dict[EffectKind, EffectKind] = {effect.undo: effect.do for effect in EFFECTS}
KEPT_IN_A_BREACH: tuple[EffectKind, ...] = tuple(effect.do for effect in EFFECTS if effect.kept_in_a_breach)

STANDS_ON: dict[EffectKind, StandsOn] = {
    **{kind: what for e in EFFECTS for kind, what in zip((e.do, e.undo), e.stands_on, strict=True)},
    _K.GRANT: StandsOn.DECISION,
    _K.CLOSE: StandsOn.TICKET,
}
"""The evidence that each call needs where keys are configured; see models/rollout/effect_approval.py."""

# The same facts by call, for quota systems.
GUARDED_BY_GENERATION = frozenset({*INVERSE, _K.GRANT})
"""Calls refused with Drift if others changed the cluster after the plan was made."""
MODE_AFTER: dict[EffectKind, LimitMode] = {
    kind: mode for e in EFFECTS if e.modes is not None for kind, mode in zip((e.do, e.undo), e.modes, strict=True)
}
FOLLOWS_AFTER: dict[EffectKind, bool] = {
    **{kind: kind is e.do for e in EFFECTS if e.follows for kind in (e.do, e.undo)},
    _K.CLOSE: False,
}
WRITES_RESERVATION = frozenset({_K.CLOSE, _K.GRANT, *(kind for e in EFFECTS if e.reserves for kind in (e.do, e.undo))})


class Gate(StrEnum):
    MAY_START = "may_start"
    MAY_ENFORCE = "may_enforce"
    MAY_MONITOR = "may_monitor"


@dataclass(frozen=True)
class Step:
    source: Stage
    target: Stage
    gate: Gate

    @property
    def effects(self) -> tuple[EffectKind, ...]:
        return tuple(effect.do for effect in EFFECTS if effect.at is self.source)


STEPS: tuple[Step, ...] = (
    Step(Stage.PLANNED, Stage.BUFFERED, Gate.MAY_START),
    Step(Stage.BUFFERED, Stage.ENFORCED, Gate.MAY_ENFORCE),
    Step(Stage.ENFORCED, Stage.MONITORED, Gate.MAY_MONITOR),
)
STEP_FROM: dict[Stage, Step] = {step.source: step for step in STEPS}
