"""A reader for the flat rollout state that earlier versions carried from run to run.

Kept for one release: a run may have begun before 0.1.0 grouped the state by lifetime. It uses dictionaries alone, so
that deleting this file and its one call removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STAY = {
    "since": "entered_at",
    "soak_since": "soak_since",
    "waived": "waived",
    "done": "done",
    "exempt": "exempt",
    "replan": "replan",
    "aiming": "aiming",
    "restoring": "restoring",
}
_OUTLOOK = ("reconsider", "proposal", "considered_gpus", "derived_at")
_ANNOUNCED = {"cuts": "told_cuts", "delivered_at": "notified_at", "undelivered": "undelivered", "acks": "acks"}
_FLEX = {"gpus": "flex_gpus", "more_since": "flex_since", "failed_at": "flex_failed_at"}
_POST = {"outbox": "outbox", "mail": "mail", "serial": "serial", "trouble": "mail_trouble", "noted": "noted"}
_UNDO = ("owed", "undone", "stuck_on")
_GONE = ("receipts",)
"""Fields of even earlier states; the archive and the history have their values."""


def nest_state(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state as it is grouped now; a grouped one comes back unchanged."""
    if "entered_at" not in data:
        return data
    flat = dict(data)

    def take(names: Mapping[str, str]) -> dict[str, Any]:
        return {new: flat.pop(old) for new, old in names.items() if old in flat}

    stay = take(_STAY)
    stay["outlook"] = take({name: name for name in _OUTLOOK})
    realigning, proposing, before = (flat.pop(k, None) for k in ("realigning", "proposing", "plan_before"))
    if realigning:
        stay["realigning"] = {"before": before, "proposed": bool(proposing)}
    envelope, by = flat.pop("envelope", None), flat.pop("approved_by", "")
    order, begun = flat.pop("granting", None), flat.pop("granting_begun", False)
    undo, progress = flat.pop("order", None), take({name: name for name in _UNDO})
    for name in _GONE:
        flat.pop(name, None)
    return {
        "announced": take(_ANNOUNCED),
        "flex": take(_FLEX),
        "post": take(_POST),
        "stay": stay,
        "approval": None if envelope is None else {"envelope": envelope, "by": by},
        "granting": None if order is None else {"order": order, "begun": begun},
        "undo": None if undo is None else {**undo, **progress},
        **flat,
    }
