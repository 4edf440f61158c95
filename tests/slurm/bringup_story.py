"""A real Slurm is brought up, gets its last node, is rolled out, and retired: `python -m tests.slurm.bringup_story`.

Everything that is asserted is read from sacctmgr, squeue and scontrol, or from /proc. What is typed and printed is the
transcript that docs/bringup-story.md shows; numbers of jobs, hashes, times and folders in it are replaced.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.slurm.lab import CLUSTER, Lab
from tests.slurm.story import ROOT, Story, at_once

EXAMPLE = ROOT / "examples" / "local-slurm"
ELSEWHERE = "/opt/backstop-examples/local-slurm"
"""Where the recipe says that the site's programs are."""
FOLDER = "/var/tmp/backstop-local-slurm"
AS_IT_IS = "example"
"""Below the home: the example's files, with the places that they name."""
_TIMED = re.compile(r"(took|waited for|soak) |\S+ +[a-z ]+ since |[○●✔✖] ")
"""Lines that tell how long something took this time."""
PATIENCE = 180.0


class BringupStory(Story):
    """`home` holds Backstop's own state, the folder beside it the cluster that is made."""

    def __init__(self, home: Path, say: object) -> None:
        self.site = home / "site"
        super().__init__(Lab(self.site / CLUSTER, {"island1": 2, "island2": 2}), home / "backstop", say)  # type: ignore[arg-type]

    def steady(self, line: str) -> str:
        told = line.replace(str(EXAMPLE), ELSEWHERE).replace(str(self.site), FOLDER)
        told = told.replace(str(self.home), "/var/lib/backstop").replace(f"{AS_IT_IS}/", "")
        told = re.sub(r"\bretire-lab-\d{14}\b", "retire-lab-1", told)
        told = re.sub(r"\b\d+[sm]\b", "2s", told) if _TIMED.match(told) else told
        told = re.sub(r"/runs/[0-9a-f]{32}/", "/runs/0123456789abcdef0123456789abcdef/", told)
        told = re.sub(r"\blocal-slurm \([0-9a-f]{16}\)", "local-slurm (0123456789abcdef)", told)
        here = platform.node()
        return super().steady(told.replace(f"on {here}", "on node-1").replace(f"{here}:", "node-1:"))

    @property
    def environment(self) -> dict[str, str]:
        files = {"BACKSTOP_RUNNERS": str(self.home / "runners.yaml"), "BACKSTOP_RUNS_DIR": str(self.home / "runs")}
        return {**super().environment, **files}

    def write_files(self) -> None:
        """Write the worker's allowed programs, the recipe and the entry, with the paths of this machine."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.site / CLUSTER / "bin").mkdir(parents=True)  # the worker's own file names it before anything is there
        (self.home / "runners.yaml").write_text(f"programs: [{{program: {EXAMPLE}/cluster.py}}]\n")
        for name in ("recipes.yaml", "entry.yaml"):
            text = (EXAMPLE / name).read_text().replace(ELSEWHERE, str(EXAMPLE)).replace(FOLDER, str(self.site))
            (self.home / name).write_text(text)
        shutil.copytree(EXAMPLE, self.home / AS_IT_IS)

    def bringup(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.backstop("bringup", "status", CLUSTER, "--json", show=False))
        return found

    def until_bringup(self, *stages: str) -> dict[str, object]:
        """Errors: AssertionError with where it stands instead."""
        ends = time.monotonic() + PATIENCE
        while (seen := self.bringup())["stage"] not in stages:
            assert time.monotonic() < ends, f"{seen['stage']}, not {stages}: {seen['waits_for']} {seen['needs']}"
            assert seen["stage"] != "blocked", seen["needs"]
            self.waits(f"{seen['stage']}: {seen['waits_for'] or 'it goes on'}")
            time.sleep(0.5)
        return seen

    def until_touch(self) -> None:
        ends = time.monotonic() + PATIENCE
        while "check-in" not in str((seen := self.bringup())["needs"]):
            assert time.monotonic() < ends, seen
            self.waits(f"{seen['stage']}: {seen['waits_for'] or 'it goes on'}")
            time.sleep(0.5)


def tell_bringup(story: BringupStory) -> None:
    """The whole of it. Errors: AssertionError where something is not so."""
    lab = story.lab
    story.title("A recipe, and what it would do")
    recipes, entry = f"{AS_IT_IS}/recipes.yaml", f"{AS_IT_IS}/entry.yaml"
    story.backstop("bringup", "recipe", "check", recipes, "--entry", entry)

    story.title("Touch 1: the cluster is entered")
    story.backstop("bringup", "add", "entry.yaml", "--recipes", "recipes.yaml", "--reason", "order 17")
    story.until_touch()
    story.backstop("bringup", "status", CLUSTER)

    story.title("Touch 2: it is checked in. Three of four nodes have come")
    story.backstop("bringup", "check-in", CLUSTER, "--reason", "merged")
    story.until_bringup("in_production")
    assert lab.idle() == 3
    story.slurm("sinfo", "-h", "-N", "-p", "all", "-o", "%N %t")
    story.slurm(
        "sacctmgr", "-n", "-P", "show", "assoc", f"cluster={CLUSTER}", "user=", "format=Account,ParentName,GrpTRES"
    )
    assert lab.limits("training", "evals") == ["8", "8"]
    story.backstop("bringup", "status", CLUSTER)
    assert (story.bringup()["check_ins"], story.bringup()["touches"]) == (1, 0)

    story.title("The fourth node comes: what is owed is granted by itself")
    more = [str(EXAMPLE / "cluster.py"), "nodes", CLUSTER, str(story.site), "4"]
    done = subprocess.run(more, check=True, timeout=120, capture_output=True, text=True)
    story.shown(shlex.join(more), done.stdout)
    story.waits("what is owed is granted")
    lab.until(lambda: lab.limits("training", "evals") == ["16", "8"], "what is owed is granted", PATIENCE)
    story.limits(("training", "gres/gpu=16"), ("evals", "gres/gpu=8"))

    story.title("It is in the fleet: its first rollout")
    story.backstop("fleet", "show")
    story.backstop("launch", CLUSTER, "--reason", "the first")
    story.backstop("approve", CLUSTER, "--plan", str(story.status()["plan_hash"]))
    story.until("monitored")
    assert sum(int(limit) for limit in lab.limits("training", "evals")) <= 32 * 17 // 20
    train = lab.submit("training", 16, "train")
    story.runs(train, "RUNNING")
    story.slurm("squeue", "-h", "-o", "%j %a %T %D")

    story.title("Retired: a rollout takes the quotas to zero, and the cluster is torn down when no job runs")
    story.backstop("bringup", "retire", CLUSTER, "--reason", "order 18 takes its place", "--yes")
    story.waits("quotas go to zero")
    lab.until(lambda: lab.limits("training", "evals") == ["0", "0"], "no quota stands", PATIENCE)
    story.limits(("training", "gres/gpu=0"), ("evals", "gres/gpu=0"))
    assert lab.job(train)[0] == "RUNNING"
    story.backstop("bringup", "status")
    story.slurm("scancel", "--name", "train")
    story.until_bringup("retired")
    story.backstop("bringup", "status", CLUSTER)
    assert not (story.site / CLUSTER).exists()
    assert json.loads(story.backstop("fleet", "show", "--json", show=False))["clusters"] == []


@contextlib.contextmanager
def told_by(say: object) -> Iterator[BringupStory]:
    """Yield a story, and remove all of it afterwards."""
    with tempfile.TemporaryDirectory(prefix="backstop-bringup-") as folder:
        Path(folder).chmod(0o755)
        story = BringupStory(Path(folder), say)
        story.write_files()
        try:
            with story.up():
                yield story
        finally:
            subprocess.run([str(EXAMPLE / "cluster.py"), "down", CLUSTER, str(story.site)], check=False, timeout=120)


HEAD = """\
# A cluster brought up, as it went

A real Slurm 22.05.8 on one machine: four nodes of eight GPUs in two islands, made by the recipe of
examples/local-slurm. Written by the test that plays it and asserts what stands after each command
(tests/slurm/bringup_story.py; `make bringup-demo` plays it on any Debian machine). Times, durations, hashes and places
in it are stand-ins.
"""


def main() -> None:
    with told_by(at_once) as story:
        tell_bringup(story)
        at_once(f"\nDone: from an order to a cluster in production and out of it again. Next: {ROOT}/docs/bringup.md")
    if "--write" in sys.argv:
        (ROOT / "docs" / "bringup-story.md").write_text(HEAD + "\n".join(story.lines) + "\n")


if __name__ == "__main__":
    main()
