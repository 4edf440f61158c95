"""The state machine as tables: stages, commands, and the answer to every pair of them.

Source: docs/design.md, "Bring-up". models/bringup/commands.py has the conditions of the command itself (a step's name,
a reason).
"""

from __future__ import annotations

from enum import StrEnum

from models.lifecycle.state_machine import STAY as _STAY
from models.lifecycle.state_machine import Refused, answers_by_cell


class BringupStage(StrEnum):
    PLANNED = "planned"
    """The bring-up waits for its supply."""
    PROVISIONING = "provisioning"
    """The steps run."""
    PROVISIONED = "provisioned"
    """Every step is done; the checks must be green together."""
    IN_PRODUCTION = "in_production"
    """The cluster is in the fleet."""
    BLOCKED = "blocked"
    """A person is needed. Work that does not need that person goes on as in the stage before."""
    CANCELLING = "cancelling"
    """The cluster is being torn down."""
    CANCELLED = "cancelled"
    RETIRING = "retiring"
    """The quotas go to zero; then the cluster is torn down."""
    RETIRED = "retired"

    @property
    def words(self) -> str:
        """The stage as people read it."""
        return self.value.replace("_", " ")

    @property
    def has_ended(self) -> bool:
        return self in (BringupStage.CANCELLED, BringupStage.RETIRED)

    @property
    def unmakes(self) -> bool:
        return self in (BringupStage.CANCELLING, BringupStage.RETIRING)


class BringupCommand(StrEnum):
    HOLD = "hold"
    RELEASE = "release"
    CHECK_IN = "check-in"
    RETRY = "retry"
    SKIP = "skip"
    STOP = "stop"
    REVALIDATE = "revalidate"
    CANCEL = "cancel"
    RETIRE = "retire"


_P, _R, _V, _M = BRINGUP_WAY = (
    BringupStage.PLANNED,
    BringupStage.PROVISIONING,
    BringupStage.PROVISIONED,
    BringupStage.IN_PRODUCTION,
)
"""The stages of a bring-up in which nothing goes wrong, in order."""
_B, _C, _U = BringupStage.BLOCKED, BringupStage.CANCELLING, BringupStage.RETIRING
_CANCELLED, _RETIRED = BringupStage.CANCELLED, BringupStage.RETIRED
_DO, _No = BringupCommand, Refused
_EARLY = _No("nothing is made yet: the bring-up waits for its supply")
_GOES_ON = _No("nothing to retry: the bring-up goes on by itself")
_MADE = _No("every step is done: `revalidate` runs the checks again, `cancel` tears the cluster down")
_THERE = _No("the cluster is in production: to hold its rollout, give `backstop pause`")
_CHECKED = _No("the cluster is in production: `revalidate` runs its checks again, `retire` takes it out")
_TAKEN_OUT = _No("the cluster is in production: `retire` takes it out")
_UNMADE = _No("the cluster is being torn down, and that cannot be stopped; to keep what a step made, `skip` that step")
_BEING_UNMADE = _No("the cluster is already being torn down")
_NOT_MADE = _No("there is nothing to check yet: the steps are not done")
_NOT_THERE = _No("the cluster is not in production: `cancel` tears down what was made")
_NO_STEP = _No("no step is running")
_NO_CHECKS = _No("the cluster is being torn down: its checks no longer matter")
_ENDED = _No("the bring-up has ended: `backstop bringup add` starts a new one")

# fmt: off
_COLUMNS =             (_P,         _R,         _V,         _M,         _B,         _C,            _U)
_GRID: dict[tuple[BringupCommand, ...], tuple[BringupStage | Refused | None, ...]] = {
    (_DO.HOLD,):       (_STAY,      _STAY,      _STAY,      _THERE,     _STAY,      _UNMADE,       _STAY),
    (_DO.RELEASE,):    (_STAY,      _STAY,      _STAY,      _THERE,     _STAY,      _UNMADE,       _STAY),
    (_DO.CHECK_IN,):   (_EARLY,     _STAY,      _MADE,      _CHECKED,   _STAY,      _UNMADE,       _BEING_UNMADE),
    (_DO.RETRY,):      (_EARLY,     _GOES_ON,   _MADE,      _CHECKED,   _STAY,      _GOES_ON,      _GOES_ON),
    (_DO.SKIP,):       (_STAY,      _STAY,      _STAY,      _STAY,      _STAY,      _STAY,         _STAY),
    (_DO.STOP,):       (_NO_STEP,   _STAY,      _NO_STEP,   _NO_STEP,   _STAY,      _STAY,         _STAY),
    (_DO.REVALIDATE,): (_NOT_MADE,  _NOT_MADE,  _STAY,      _STAY,      _STAY,      _NO_CHECKS,    _NO_CHECKS),
    (_DO.CANCEL,):     (_C,         _C,         _C,         _TAKEN_OUT, _C,         _BEING_UNMADE, _BEING_UNMADE),
    (_DO.RETIRE,):     (_NOT_THERE, _NOT_THERE, _NOT_THERE, _U,         _NOT_THERE, _BEING_UNMADE, _STAY),
}
# fmt: on

BRINGUP_ANSWERS: dict[tuple[BringupStage, BringupCommand], BringupStage | Refused] = answers_by_cell(
    _COLUMNS, BringupCommand, _GRID, _ENDED
)

BRINGUP_TRANSITIONS: frozenset[tuple[BringupStage, BringupStage]] = frozenset(
    {
        (_P, _R),
        (_R, _V),
        (_V, _M),
        (_M, _U),
        (_U, _RETIRED),
        (_C, _CANCELLED),
        *((stage, _C) for stage in (_P, _R, _V, _B)),
        *((stage, _B) for stage in (_R, _V, _C, _U)),
        *((_B, stage) for stage in (_R, _V, _C, _U)),
    }
)
"""Every valid change of stage; any other is a bug of ours."""
