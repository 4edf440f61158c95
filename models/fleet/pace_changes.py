"""Changes of pace for a fleet rollout under way, and the settings that are refused as pointless."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from models.base import duration_text, fraction_text, in_one_sentence
from models.cluster.policy import Policy
from models.fleet.gates import rest_until
from models.fleet.state import FleetRollout, Pace, Wave

BUDGET = ("max_moved_gpus", "max_moved_gpus_day")
"""The fields of a member's policy that the fleet rollout's pace sets."""
_LEAST_RECHECK = timedelta(seconds=1)


def pace_after(pace: Pace, changes: Iterable[Mapping[str, Any]]) -> Pace:
    """Return the pace after these changes, in their order; those that are refused change nothing."""
    for settings in changes:
        new = change_pace(pace, settings)
        pace = new if isinstance(new, Pace) else pace
    return pace


def budget_of(own: Policy, pace: Pace) -> dict[str, int]:
    """Return how many GPUs a member may move: the fleet's budget, unless the cluster's own policy is tighter."""
    day = pace.budget_per_day
    most = day if own.max_moved_gpus_day is None else min(own.max_moved_gpus_day, day)
    return dict(zip(BUDGET, (min(own.max_moved_gpus, pace.budget_per_hour), most), strict=True))


def change_pace(pace: Pace, settings: Mapping[str, Any]) -> Pace | str:
    """Return the pace with these settings, or the reason they are refused, naming the field."""
    unknown = sorted(settings.keys() - Pace.model_fields.keys())
    if unknown:
        return f"pace has no setting {unknown[0]}: its settings are {', '.join(Pace.model_fields)}"
    if not settings:
        return f"pace needs KEY=VALUE: its settings are {', '.join(Pace.model_fields)}"
    try:
        new = Pace.model_validate({**dict(pace), **settings})
    except ValidationError as error:
        return in_one_sentence(error)
    if why := pace_fault(new):
        return why
    return new if new != pace else f"nothing would change: {', '.join(_texts(pace, settings))} already"


def pace_fault(pace: Pace) -> str:
    """Explain why nothing would ever start, or a bound would never be reached; empty if neither is so."""
    for name in ("budget_per_hour", "budget_per_day"):
        if getattr(pace, name) == 0:
            return f"{name} must be at least 1, not 0: nothing would start (to hold the fleet rollout, pause it)"
    if pace.budget_per_hour > pace.budget_per_day:
        return f"budget_per_hour must be at most {pace.budget_per_day} (budget_per_day), not {pace.budget_per_hour}"
    if pace.recheck < _LEAST_RECHECK:
        return f"recheck must be at least {duration_text(_LEAST_RECHECK)}, not {duration_text(pace.recheck)}"
    return ""


def value_text(pace: Pace, name: str) -> str:
    """Return the setting as people type it."""
    value = getattr(pace, name)
    if isinstance(value, timedelta):
        return duration_text(value)
    return str(value) if isinstance(value, int) else fraction_text(value)


def _texts(pace: Pace, names: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name} is {value_text(pace, name)}" for name in Pace.model_fields if name in names)


def changes_text(before: Pace, after: Pace) -> str:
    """Describe the changes: parallel 10 -> 20, bake 1d -> 12h."""
    changed = (name for name in Pace.model_fields if getattr(before, name) != getattr(after, name))
    return ", ".join(f"{name} {value_text(before, name)} -> {value_text(after, name)}" for name in changed)


def settings_back(before: Pace, after: Pace) -> str:
    """Return the settings that restore the pace, as people type them."""
    changed = (name for name in Pace.model_fields if getattr(before, name) != getattr(after, name))
    return " ".join(f"{name}={value_text(before, name)}" for name in changed)


def counts_from(before: FleetRollout, after: FleetRollout, now: datetime) -> str:
    """Say when the change counts: at once, and for a running soak or bake from its start."""
    rested_until, rests = rest_until(before), rest_until(after)
    if rests is None or rested_until == rests:
        return "in force at once"
    what = "soak" if after.wave is Wave.PILOT else "bake"
    if now >= rests:
        return f"in force at once: by the new length the running {what} has already ended" + (
            ", but the holds remain" if after.holds else ""
        )
    return f"in force at once: by the new length the running {what} ends {rests:%Y-%m-%d %H:%M:%SZ}"
