"""The CPU time of dividing flex: 100,000 GPUs among 10,000 teams in a three-level tree, beside giving them one by one.

    python benchmarks/flex.py [--gpus 100000] [--teams 10000] [--seed 1]

The reference hands out one GPU at a time, walking down from the top to the child that the house rule names; it must
come to the same shares.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.flex.division import FlexDemand, FlexMode, FlexTeam, division

_FAN = 22
"""Namespaces, groups in each, and (at 10,000 teams) teams in each of those."""


def made(gpus: int, teams: int, seed: int, mode: FlexMode) -> FlexDemand:
    """Return teams that want half as much again as there is; quotas promise four fifths of it."""
    dice = random.Random(seed)
    inner = [FlexTeam(team=f"n{n:02}") for n in range(_FAN)]
    inner += [FlexTeam(team=f"g{n:03}", parent=f"n{n % _FAN:02}") for n in range(_FAN * _FAN)]
    mean = gpus / teams
    leaves = [
        FlexTeam(
            team=f"t{n:05}",
            parent=f"g{n % (_FAN * _FAN):03}",
            quota_gpus=int(dice.expovariate(1 / (0.8 * mean))),
            demand_gpus=int(dice.expovariate(1 / (1.5 * mean))),
            weight=Fraction(dice.randint(1, 9)),
        )
        for n in range(teams)
    ]
    return FlexDemand(capacity_gpus=gpus, mode=mode, teams=tuple(inner + leaves))


def one_by_one(asked: FlexDemand) -> dict[str, int]:
    """Divide by the same rule without any cleverness: every GPU goes down the tree by itself."""
    by_name = {t.team: t for t in asked.teams}
    children: dict[str | None, list[str]] = {}
    for t in asked.teams:
        children.setdefault(t.parent, []).append(t.team)
    quota: dict[str, int] = {}
    wants: dict[str, int] = {}

    def sum_up(name: str) -> None:
        below = children.get(name, [])
        for child in below:
            sum_up(child)
        own = by_name[name]
        quota[name] = sum(quota[c] for c in below) if below else own.quota_gpus or 0
        wants[name] = sum(wants[c] for c in below) if below else own.demand_gpus

    for name in children[None]:
        sum_up(name)
    got = dict.fromkeys(by_name, 0)

    def weight(name: str) -> float:
        plain = {FlexMode.EQUAL: 1, FlexMode.QUOTA: quota[name], FlexMode.WEIGHT: by_name[name].weight or 1}
        return float(plain[asked.mode])

    def next_of(names: list[str]) -> str | None:
        best, most = None, (-1, 0.0)
        for name in sorted(names):
            promised = min(quota[name], wants[name])
            if got[name] < promised:
                claim = (2, quota[name] / (2 * got[name] + 1))
            elif got[name] < wants[name]:  # who weighs nothing comes last, and all of them alike
                claim = (int(weight(name) > 0), (weight(name) or 1.0) / (2 * (got[name] - promised) + 1))
            else:
                continue
            if claim > most:
                best, most = name, claim
        return best

    for _ in range(asked.capacity_gpus):
        at = next_of(children[None])
        if at is None:
            break
        got[at] += 1
        while at in children:
            at = next_of(children[at])
            assert at is not None
            got[at] += 1
    return {name: gpus for name, gpus in got.items() if name not in children}


def seconds(asked: FlexDemand, times: int) -> float:
    found = []
    for _ in range(times):
        began = time.process_time()
        division(asked)
        found.append(time.process_time() - began)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=100_000)
    parser.add_argument("--teams", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.gpus:,} GPUs among {options.teams:,} teams in {_FAN} namespaces of {_FAN} groups\n")
    print("| mode | ours, CPU s | one by one, CPU s | ratio | same shares |\n|---|---|---|---|---|")
    for mode in FlexMode:
        asked = made(options.gpus, options.teams, options.seed, mode)
        ours = seconds(asked, 5)
        began = time.process_time()
        reference = one_by_one(asked)
        plain = time.process_time() - began
        same = reference == {p.team: p.gpus for p in division(asked).portions}
        print(f"| {mode} | {ours:.3f} | {plain:.1f} | {plain / ours:.0f} | {'yes' if same else 'NO'} |", flush=True)


if __name__ == "__main__":
    main()
