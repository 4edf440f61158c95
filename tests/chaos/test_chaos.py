"""The short form: a few rollouts, every kind of fault, and nothing lost. `make chaos` runs the long one.

Temporal's database is deleted in between by night alone (TRIES=all): it takes as long again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos import repository
from tests.chaos.run import Options, run, table
from tests.chaos.site import FAULTS, ONCE

SEED = int(os.environ.get("CHAOS_SEED", "20"))
NIGHT = os.environ.get("TRIES") == "all"


@pytest.mark.chaos
@pytest.mark.nightly
@pytest.mark.timeout(700)
@pytest.mark.parametrize("git", [False, True], ids=["ledger", "git"])
async def test_nothing_is_lost_while_everything_breaks(tmp_path: Path, git: bool) -> None:
    print(f"seed {SEED}: again with CHAOS_SEED={SEED}, or `python -m tests.chaos --seed {SEED} --rollouts 8 ...`")
    options = Options(rollouts=8, seconds=35, gap=2, settle_seconds=200, deletes=NIGHT, git=git, seed=SEED)
    outcome, losses = await run(options, tmp_path)
    print(table(outcome))
    assert losses == [], "\n".join(map(str, losses))
    assert {f["kind"] for f in outcome.faults} == {
        *FAULTS,
        *([ONCE] if NIGHT else []),
        *(repository.FAULTS if git else []),
    }
    assert any(r["superseded_by"] is not None for r in outcome.tables["rollouts"]) == NIGHT
    assert len(outcome.tables["receipts"]) > 16, "too little happened to prove anything"
    assert any(s["answer"] == "taken" for s in outcome.said)
    assert any(c["rollout"] for c in outcome.commits) == git
