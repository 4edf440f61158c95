"""A worker process that does one thing with a command's run, to be killed: python -m tests.integration.runners.workers.

Arguments: `start` or `follow`, the folder, the program, the step. It prints `ready` before it begins, the phase of each
step that it has started, and `follows` when it has looked at what it follows.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from activities.adapters.runners.runners import Runners
from activities.adapters.runners.settings import Allowed, RunnerSettings
from models.bringup.runs import RunKey, Runner, RunOrder
from tests.waiting import attempts


def runners(folder: Path, program: str) -> Runners:
    settings = RunnerSettings.model_validate({"programs": [{"program": program}], "grace": "1s"})
    return Runners(Allowed(settings), folder / "runs")


def order(program: str, step: str, folder: Path) -> RunOrder:
    key = RunKey(cluster="h100-new", attempt=1, step=step)
    return RunOrder(key=key, runner=Runner.COMMAND, run=(program, step, str(folder)), limit=timedelta(minutes=5))


if __name__ == "__main__":
    what, where, program, *steps = sys.argv[1:]
    folder = Path(where)
    worker = runners(folder, program)
    print("ready", flush=True)
    for step in steps:
        if what == "race":  # all at the same moment, as far as two processes can
            while not (folder / f"now-{step}").exists():
                pass
        print(worker.start(order(program, step, folder)).phase, flush=True)
    if what == "follow":
        worker.look(order(program, steps[0], folder))
        print("follows", flush=True)
        for _ in attempts("it is killed"):
            worker.look(order(program, steps[0], folder))
