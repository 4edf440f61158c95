"""`python -m tests.chaos`: the long form. Exit 1 when something was lost; the evidence is kept then."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.check import late
from tests.chaos.run import Options, run, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=Options.rollouts, help="clusters with rollouts at once")
    parser.add_argument("--workers", type=int, default=Options.workers, help="worker processes")
    parser.add_argument("--seconds", type=float, default=Options.seconds, help="how long it rages")
    parser.add_argument("--gap", type=float, default=Options.gap, help="seconds from fault to fault, on average")
    parser.add_argument("--settle", type=float, default=Options.settle_seconds, help="seconds until all must rest")
    parser.add_argument("--seed", type=int, default=None, help="the same seed, the same schedule")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for logs and evidence")
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    options = Options(
        rollouts=given.rollouts,
        workers=given.workers,
        seconds=given.seconds,
        gap=given.gap,
        settle_seconds=given.settle,
        seed=seed,
    )
    home = given.keep or Path(tempfile.mkdtemp(prefix="backstop-chaos-"))
    print(
        f"chaos: --seed {seed} --rollouts {options.rollouts} --seconds {options.seconds:g}; logs in {home}", flush=True
    )
    outcome, losses = asyncio.run(run(options, home))
    outcome.save(home / "outcome.json.gz")
    print(table(outcome))
    for loss in losses:
        print(f"LOST {loss}")
    tardy = late(outcome)
    for one in tardy:
        print(f"LATE {one}")
    print(f"lost: {len(losses)}, answered late: {len(tardy)}")
    return bool(losses or tardy)


if __name__ == "__main__":
    sys.exit(main())
