"""What each field of the fleet file means: for the JSON Schema that editors show, and for docs/fleet-file.md.

`python -m cli.fields docs/fleet-file.md` writes the tables anew; a test finds out when that is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from models.base import duration_text
from models.cluster.fleet_file import ClusterSpec, Fleet, Team
from models.cluster.health_buffer import HealthTerms
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.sources import PrometheusSource, SlurmSource
from models.cluster.windows import Window

_GPUS, _DURATION, _SHARE, _NAME, _TEXT, _TIME, _COUNT = (
    "GPUs",
    "duration",
    "0 to below 1",
    "name",
    "text",
    "time with zone",
    "count",
)


class Note(NamedTuple):
    unit: str
    text: str
    otherwise: str = ""
    """What holds where the field is left out and its default is no value."""


NOTES: Mapping[type[BaseModel], Mapping[str, Note]] = {
    Fleet: {
        "clusters": Note("list", "The clusters, at least one; no name twice."),
        "policy": Note("mapping", "The policy of every cluster, but for what a cluster's own policy says.", "defaults"),
        "teams": Note("list", "Whom to tell, and where; everything is in the log anyway.", "none"),
        "$schema": Note(_TEXT, "Where this schema is, so that an editor checks the file. Not read.", "none"),
    },
    ClusterSpec: {
        "name": Note(_NAME, "The cluster's name, unique in the fleet."),
        "gpu_model": Note(_TEXT, "For people to read.", "not given"),
        "gpus_per_node": Note(_GPUS, "The size of a node: the default of spare_gpus."),
        "islands": Note("list", "Topology blocks, at least one: a contiguous block of GPUs cannot cross them."),
        "policy": Note("mapping", "What differs from the fleet's policy; the same fields.", "nothing"),
        "quotas": Note("list", "What is promised, and to whom; no team twice.", "none"),
        "windows": Note("list", "Declared maintenance, SEVs and freezes.", "none"),
        "prometheus": Note(
            "mapping",
            "The Prometheus that says what is healthy (docs/prometheus.md).",
            "Slurm, or whoever writes samples",
        ),
        "slurm": Note("mapping", "The Slurm that holds its quotas, health and use (docs/slurm.md).", "the ledger does"),
    },
    PrometheusSource: {
        "connection": Note(_NAME, "Which one: a name of the file that BACKSTOP_PROMETHEUS names."),
        "cluster": Note(_NAME, "The value of its label for clusters.", "the cluster's name"),
    },
    SlurmSource: {
        "connection": Note(_NAME, "How the worker reaches it: a name of the file that BACKSTOP_SLURM names."),
        "cluster": Note(_NAME, "Slurm's name of it.", "the cluster's name"),
        "root": Note(_NAME, "The account under which the teams' are; unless it is root, it bounds them all."),
        "gres": Note(_NAME, "What is promised: the TRES gres/ and this."),
        "flex_root": Note(_NAME, "The account under which the accounts for flex are."),
        "flex_suffix": Note(_TEXT, "What a team's account for flex has after the team's name."),
        "flex_qos": Note(_NAME, "The QOS of flex jobs."),
        "size_flex": Note("yes or no", "Whether that QOS is sized, where it is there: it takes an Administrator."),
    },
    Island: {
        "name": Note(_NAME, "The island's name, unique in its cluster; without a comma."),
        "total_gpus": Note(_GPUS, "GPUs installed."),
        "healthy_gpus": Note(_GPUS, "GPUs a job could be placed on now; at most total_gpus."),
        "block_gpus": Note(_GPUS, "Healthy GPUs on wholly healthy nodes; at most healthy_gpus.", "healthy_gpus"),
    },
    Quota: {
        "team": Note(_NAME, "Who holds it, unique in its cluster."),
        "gpus": Note(_GPUS, "GPUs promised."),
        "scheduled_gpus": Note(_GPUS, "GPUs that its running jobs hold; may exceed gpus.", "gpus: all in use"),
        "idle_gpus": Note(_GPUS, "The part of scheduled_gpus that does no work.", "0"),
        "pending_gpus": Note(_GPUS, "GPUs that its queued jobs ask for; no plan goes by it.", "unknown"),
        "islands": Note("list of names", "The islands it may stand on.", "any"),
        "protected_blocks": Note(
            "list of GPUs", "Contiguous blocks, each whole inside one island; in sum at most gpus.", "none"
        ),
        "minimum_gpus": Note(_GPUS, "No plan cuts below it; at most gpus."),
        "parent": Note(_NAME, "The quota of this cluster that it is part of; only leaves hold jobs.", "none"),
        "namespaces": Note("list of names", "Who may target it, beside the team itself; no commas in them.", "anybody"),
    },
    Window: {
        "kind": Note("word", "maintenance and sev explain a shortage and hold gates; freeze only holds them."),
        "starts": Note(_TIME, "From when."),
        "ends": Note(_TIME, "Until when; after starts."),
        "reason": Note(_TEXT, "In a sentence; people read it."),
        "islands": Note("list of names", "Where.", "all islands"),
        "gpus": Note(_GPUS, "How many may be gone.", "all of those islands"),
    },
    Team: {
        "name": Note(_NAME, "As in quotas."),
        "contacts": Note(
            "list of text", "Beside the log: e-mail addresses, Slack or webhook URLs (docs/notices.md).", "the log"
        ),
    },
    Policy: {
        "buffer": Note(
            _SHARE,
            "The share that is not promised; or {ramp: [...]}: growing shares, a step for each completed rollout; "
            "or {health: {...}}: from the cluster's health history.",
        ),
        "basis": Note("word", "What the buffer is a share of: total or healthy GPUs."),
        "scope": Note("word", "cluster: the buffer is taken from the whole; quota: from each quota."),
        "share": Note(
            "word", "By what a cut is divided inside a tier: what each has in the tier, its quota, or equal."
        ),
        "max_tier": Note("word", "The deepest tier a plan may cut: unallocated, unscheduled, idle or busy."),
        "spare_gpus": Note(_GPUS, "Healthy GPUs that are never promised.", "gpus_per_node"),
        "usage_window": Note(_DURATION, "Usage is the 95th percentile over this, where there is history."),
        "notice": Note(_DURATION, "How long before the first change teams know of it."),
        "soak_buffered": Note(_DURATION, "Without a breach from buffered to enforced."),
        "soak_enforced": Note(_DURATION, "Without a breach from enforced to monitored."),
        "acks": Note("word", "Whose acknowledgement enforcing waits for: none, majority or all."),
        "ack_deadline": Note(_DURATION, "How long it waits for them."),
        "breach_after": Note(_DURATION, "A quota that lacks healthy GPUs for longer is in breach."),
        "clear_after": Note(_DURATION, "Health must be good for this long before the breach timer starts anew."),
        "recover_after": Note(_DURATION, "Health must be good for this long before the next attempt."),
        "stale_after": Note(_DURATION, "Health older than this opens no gate, and then holds."),
        "plausible_drop": Note(_SHARE, "A larger drop between two samples is unknown until it is confirmed."),
        "confirm_samples": Note(_COUNT, "How many more samples confirm such a drop."),
        "on_breach": Note("word", "rollback, hold or realign."),
        "rollback_to": Note("word", "After a breach: backed values, or the baseline, advisory."),
        "attempts": Note(_COUNT, "Breach rollbacks before a person is called."),
        "on_drift": Note("word", "When others change a quota: hold, restore or accept."),
        "max_moved_gpus": Note(_GPUS, "The most that is moved by itself, per fleet and hour; past it Backstop holds."),
        "max_moved_gpus_day": Note(_GPUS, "The same within a day.", "no limit but the hour's"),
        "max_breaching_clusters": Note(_COUNT, "Breach rollbacks at once that are exempt from it."),
        "flex_band_gpus": Note(
            _GPUS, "The published flex pool grows only by more than this; it shrinks at once.", "one node"
        ),
        "on_long_run": Note("word", "Long-run health has left the plan behind: apply (inside), propose, ignore."),
        "replan_window": Note(_DURATION, "Long-run health is the median of so long; at most one proposal in it."),
        "replan_gpus": Note(_GPUS, "More than this must lie between it and the plan's health.", "one node"),
        "safety_poll": Note(_DURATION, "How often a rollout looks at its cluster unasked."),
        "authorities": Note(
            "list of names", "Who may resolve another's objection, beside the owner.", "the owner alone"
        ),
        "owners": Note(
            "list of names",
            "Who decides on requests for more quota, beside the owner of an open rollout.",
            "that owner alone",
        ),
        "requests": Note("word", "While a rollout is on its way to monitored, requests: wait or refuse."),
    },
    HealthTerms: {
        "target": Note("0.5 to 0.99999", "The share of hours of the horizon in which the promise is to hold."),
        "horizon": Note(_DURATION, "For how long is promised; from 1w to 52w."),
        "floor": Note(_SHARE, "The buffer while history is short or stale; at most `most`."),
        "most": Note(_SHARE, "A cluster that needs a larger buffer cannot be promised honestly."),
        "history": Note(_DURATION, "Less than this is short; from 1d to 52w."),
    },
}


def field_of(model: type[BaseModel], name: str) -> Any:
    """The model's field as the file names it."""
    return next(f for key, f in model.model_fields.items() if name in (key, f.alias))


def default_of(model: type[BaseModel], name: str) -> Any:
    """The default as a person would write it; None where there is none, or it is no value."""
    default = field_of(model, name).default
    if default is PydanticUndefined or default is None or isinstance(default, BaseModel | tuple):
        return None
    if isinstance(default, timedelta):
        return duration_text(default)
    return float(default) if isinstance(default, Fraction) else default


def table_of(model: type[BaseModel]) -> str:
    """The model's fields as a Markdown table."""
    lines = ["| field | unit | default | |", "|---|---|---|---|"]
    for name, note in NOTES[model].items():
        default = default_of(model, name)
        shown = (
            "required" if field_of(model, name).is_required() else note.otherwise if default is None else f"`{default}`"
        )
        lines.append(f"| `{name}` | {note.unit} | {shown} | {note.text} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """The document with the table between each pair of `<!-- fields NAME -->` and `<!-- end -->` made anew."""
    models = {model.__name__: model for model in NOTES}
    return re.sub(
        r"(<!-- fields (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{table_of(models[found[2]])}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
