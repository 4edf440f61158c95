"""Sentences about rollouts that the ledger has open and Temporal does not run. Imports nothing of Temporal."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from models.reports.rollout_summary import RolloutSummary
from models.rollout.stages import command_line
from models.texts import count_text

if TYPE_CHECKING:
    from models.bringup.messages import BringupRow
    from models.fleet.archived_state import KeptFleet
    from models.status_questions import Overview

ADOPT_ALL = "backstop launch --adopt --all"
ADOPT_FLEET = "backstop launch --fleet --adopt"


def adopt_line(cluster: str) -> str:
    return f"{command_line('launch', cluster)} --adopt"


def lost_sentence(row: Overview) -> str:
    """Say that a rollout is lost, and what to do."""
    return (
        f"rollout {row.rollout} of {row.cluster} is open in the ledger ({row.stage}) and Temporal does not run it: "
        f"nobody guards its quotas; take it over with `{adopt_line(row.cluster)}`"
    )


def lost_bringup_sentence(row: BringupRow) -> str:
    """Say that a bring-up is lost, and what to do."""
    return (
        f"the bring-up of {row.cluster} is open in the ledger ({row.stage.words}) and Temporal does not run it: "
        f"nobody drives it; {lost_bringup_remedy(row.cluster)}"
    )


def lost_bringup_remedy(cluster: str) -> str:
    """Say what to do about a lost bring-up."""
    return (
        f"add {cluster} again with the same entry, which continues the bring-up; or tear down by hand what it made, "
        f"then: backstop bringup give-up {shlex.quote(cluster)}"
    )


def lost_fleet_sentence(kept: KeptFleet) -> str:
    """Say that the fleet rollout is lost, and what to do."""
    clusters = count_text(len(kept.members) or len(kept.unplaced), "cluster")
    return (
        f"fleet rollout {kept.fleet} of {clusters} is open in the ledger ({kept.stage}) and Temporal does not run it: "
        f"no cluster is started; take it over with `{ADOPT_FLEET}`"
    )


def stopped_sentence(what: str) -> str:
    """Say that Temporal stopped it, where the ledger no longer has it open or does not answer."""
    return f"Temporal stopped {what} before it was finished, so nothing drives it: see `backstop doctor`"


def summary_of(row: Overview) -> RolloutSummary:
    """Return an open rollout's summary from the ledger alone."""
    summary = as_summary(row, None)
    return summary.but(needs=row.needs, could=row.could, lost=False)


def as_summary(row: Overview, other: RolloutSummary | None) -> RolloutSummary:
    """Return the row's summary in place of an earlier rollout's there. Fields outside the ledger are unknown."""
    since = datetime.min.replace(tzinfo=UTC) if other is None else other.started  # a worker of an older build said none
    return RolloutSummary(
        cluster=row.cluster,
        stage=row.stage,
        wave="" if other is None else other.wave,
        owner=row.owner,
        unbacked_gpus=None,
        started=row.opened_at or since,
        closed=None,
        open=True,
        needs=f"it is lost: {adopt_line(row.cluster)}",
        held=row.held,
        holds=row.holds,
        health_at=row.health_at,
        shadow=row.shadow,
        lost=True,
    )
