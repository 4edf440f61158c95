"""`python -m tests.chaos`: the long form. Exit 1 when something was lost; the evidence is kept then."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.check import late
from tests.chaos.outcome import Outcome
from tests.chaos.run import Options, injected, injected_line, run, table


def main() -> int:
    given = _given()
    home = given.keep or Path(tempfile.mkdtemp(prefix="backstop-chaos-"))
    seeds = given.seeds or [random.randrange(10**6) if given.seed is None else given.seed]
    sums: Counter[str] = Counter()
    for seed in seeds:
        folder = home / f"seed-{seed}" if len(seeds) > 1 else home
        options = Options(
            rollouts=given.rollouts,
            workers=given.workers,
            seconds=given.seconds,
            gap=given.gap,
            settle_seconds=given.settle,
            deletes=not given.keep_database,
            git=given.git,
            seed=seed,
        )
        outcome, lost, tardy = _one(options, folder)
        faults, thrown = injected(outcome)
        sums.update(faults=faults, thrown=thrown, lost=lost, late=tardy, failed=bool(lost or tardy))
    if len(seeds) > 1:
        print(f"\nseeds {','.join(map(str, seeds))}: {len(seeds) - sums['failed']} of {len(seeds)} are green")
        print(f"lost: {sums['lost']}, answered late: {sums['late']}")
        print(injected_line(sums["faults"], sums["thrown"]))
    return bool(sums["failed"])


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=Options.rollouts, help="clusters with rollouts at once")
    parser.add_argument("--workers", type=int, default=Options.workers, help="worker processes")
    parser.add_argument("--seconds", type=float, default=Options.seconds, help="how long it rages")
    parser.add_argument("--gap", type=float, default=Options.gap, help="seconds from fault to fault, on average")
    parser.add_argument("--settle", type=float, default=Options.settle_seconds, help="seconds until all must rest")
    parser.add_argument("--keep-database", action="store_true", help="Temporal's database is not deleted in between")
    parser.add_argument("--git", action="store_true", help="a Git repository holds the quotas, and breaks as well")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, default=None, help="the same seed, the same schedule")
    which.add_argument("--seeds", type=_seeds, default=None, help="several, one after the other: 1,2,3; and their sum")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for logs and evidence")
    return parser.parse_args()


def _seeds(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _one(options: Options, home: Path) -> tuple[Outcome, int, int]:
    """Return the outcome, the number of losses and the number of late answers."""
    print(
        f"chaos: --seed {options.seed} --rollouts {options.rollouts} --seconds {options.seconds:g}; logs in {home}",
        flush=True,
    )
    outcome, losses = asyncio.run(run(options, home))
    print(table(outcome))
    for loss in losses:
        print(f"LOST {loss}")
    tardy = late(outcome)
    for one in tardy:
        print(f"LATE {one}")
    print(f"lost: {len(losses)}, answered late: {len(tardy)}")
    print(injected_line(*injected(outcome)), flush=True)
    return outcome, len(losses), len(tardy)


if __name__ == "__main__":
    sys.exit(main())
