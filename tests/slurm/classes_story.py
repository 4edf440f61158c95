"""Classes inside a quota on a real Slurm, as people see them: `python -m tests.slurm.classes_story`.

Everything that is asserted is read from squeue, sacct and sacctmgr; docs/slurm-classes.md shows what was typed and
printed. Numbers of jobs stand there as Slurm gave them, from 1 on.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.slurm.lab import CLUSTER, running
from tests.slurm.story import POLICY, ROOT, Story, at_once

FLEET = """\
clusters:
  - name: lab
    gpus_per_node: 8
    islands:
      - {name: island1, total_gpus: 24, healthy_gpus: 24}
      - {name: island2, total_gpus: 24, healthy_gpus: 24}
    policy: {classes: [training, engines]}
    slurm: {connection: lab, root: research-org, classes: write, yields: {engines: {how: requeue, grace: 1s}}}
    quotas:
      - {team: vision, gpus: 32, protected_blocks: [16]}
      - {team: speech, gpus: 8}
"""
CALM = {"soak_buffered": "1h", "breach_after": "1h"}
"""Nodes fail here, and the promise is not what this is about."""


class Scene:
    """The story's jobs by name. Whoever is not said to have gone has run all the time."""

    def __init__(self, story: Story) -> None:
        self.story, self.lab = story, story.lab
        self.jobs: dict[str, str] = {}
        self.went: dict[str, list[str]] = {}

    def submit(self, team: str, job_class: str, gpus: int, name: str, *, runs: bool = True) -> None:
        qos = f"--qos={CLUSTER}-{team}-{job_class}"
        self._submit(team, gpus, name, qos, runs=runs)

    def flex(self, team: str, name: str) -> None:
        self._submit(f"{team}-flex", 8, name, "--qos=flex", runs=True)

    def _submit(self, account: str, gpus: int, name: str, qos: str, *, runs: bool) -> None:
        self.jobs[name] = self.lab.submit(account, gpus, name, qos, "--requeue")
        if runs:
            self.story.runs(self.jobs[name], "RUNNING")

    def waits(self, name: str, reason: str) -> None:
        self.lab.until(lambda: self.lab.job(self.jobs[name]) == ("PENDING", reason), f"{name} waits: {reason}")

    def ended(self, name: str) -> list[str]:
        """Return how its ended runs ended, the first one first."""
        shown = self.lab.run("sacct", "-n", "-P", "-D", "-X", "-j", self.jobs[name], "-o", "State")
        return [state for state in shown.split("\n") if state in ("PREEMPTED", "NODE_FAIL")]

    def gone(self, how: str, *names: str) -> None:
        """These have ended so once more, and of all the others only those that were said to have."""
        for name in names:
            self.went.setdefault(name, []).append(how)
            self.lab.until(lambda name=name: self.ended(name) == self.went[name], f"{name} is {how}")  # type: ignore[misc]
            if how == "PREEMPTED":  # two minutes later it would start again, in the midst of what comes then
                self.lab.run("scontrol", "update", f"jobid={self.jobs[name]}", "StartTime=now+1hour")
        for other in self.jobs:
            assert self.ended(other) == self.went.get(other, []), f"{other} is {self.ended(other)}"

    def stopped(self, *names: str) -> list[str]:
        """Return those of them that no longer run."""
        return [n for n in names if n not in self.went and self.lab.job(self.jobs[n])[0] != "RUNNING"]

    def queue(self) -> None:
        self.story.slurm("squeue", "-h", "-S", "i", "-o", "%j %a %q %T %r %b %D")

    def accounting(self) -> None:
        self.story.slurm("sacct", "-n", "-P", "-D", "-X", "-o", "JobName,Account,QOS,State")

    def fails(self, name: str) -> None:
        """The first node under the job fails, and stays so."""
        nodes = self.lab.run("squeue", "-h", "-j", self.jobs[name], "-o", "%N")
        node = self.lab.run("scontrol", "show", "hostnames", nodes).split("\n")[0]
        for state in ("drain", "down"):  # what is only down comes back as soon as its daemon speaks
            self.story.slurm("scontrol", "update", f"nodename={node}", f"state={state}", "reason=Xid 79")
        self.gone("NODE_FAIL", name)
        # Two minutes later Slurm would start it by itself, a time that it sets after sacct tells of the failure.
        self.waits(name, "BeginTime")
        self.story.slurm("scontrol", "update", f"jobid={self.jobs[name]}", "StartTime=now")
        self.story.runs(self.jobs[name], "RUNNING")


def _set_up(story: Story) -> None:
    lab = story.lab
    lab.run("sacctmgr", "-i", "-Q", "add", "qos", "flex")
    lab.run("sacctmgr", "-i", "-Q", "modify", "qos", "flex", "set", "Priority=0", "PreemptMode=requeue")
    lab.run("sacctmgr", "-i", "-Q", "modify", "qos", "normal", "set", "Priority=100", "Preempt=flex")
    lab.account("research-org")
    lab.account("vision", "research-org", 32)
    lab.account("speech", "research-org", 8)
    lab.account("flex-pool")
    lab.account("speech-flex", "flex-pool", qos="flex", defaultqos="flex")
    (story.home / "fleet.yaml").write_text(FLEET)


def tell(story: Story) -> None:
    """The whole of it. Errors: AssertionError where something is not so."""
    _set_up(story)
    lab, scene = story.lab, Scene(story)
    story.title("Asked for in the fleet file, and written with the first write of a rollout")
    story.shown("cat fleet.yaml", FLEET)
    story.backstop("fleet", "import", "fleet.yaml")
    settings = [part for key, value in {**POLICY, **CALM}.items() for part in ("--policy", f"{key}={value}")]
    story.backstop("launch", CLUSTER, "--yes", "--reason", "pilot", *settings, show=False)
    story.backstop("approve", CLUSTER, "--plan", str(story.status()["plan_hash"]), show=False)
    story.until("buffered")
    # The account may use the last ones once all of them stand.
    allowed = ("sacctmgr", "-n", "-P", "show", "assoc", "account=vision", "user=", "format=QOS")
    lab.until(lambda: "lab-vision-training" in lab.run(*allowed), "the watch's look has written them")
    columns = "format=Name%22,Priority,Preempt%26,PreemptMode,GraceTime,MaxTRESPA%12"
    shown = story.slurm("sacctmgr", "-n", "-P", "show", "qos", columns)
    assert "lab-vision-engines|99|flex|requeue|00:00:01|gres/gpu=16" in shown
    assert "lab-vision-training|100|flex,lab-vision-engines|cluster|00:00:00|" in shown

    story.title("Engines leave room for the block in their quota; what is beyond may run on flex")
    for name in ("grade-1", "grade-2"):
        scene.submit("vision", "engines", 8, name)
    scene.submit("vision", "engines", 8, "grade-3", runs=False)
    scene.waits("grade-3", "MaxGRESPerAccount")
    scene.submit("speech", "engines", 8, "score")
    for name in ("sweep-1", "sweep-2", "sweep-3"):
        scene.flex("speech", name)
    scene.queue()

    story.title("A training block arrives, and every node is taken: flex goes first")
    scene.submit("vision", "training", 16, "train")
    flex = scene.stopped("sweep-1", "sweep-2", "sweep-3")
    assert len(flex) == 2, "two nodes are what the block needs"
    scene.gone("PREEMPTED", *flex)
    scene.queue()

    story.title("A node fails under it, and another: the last of flex goes, then an engine of its own account")
    scene.fails("train")
    (last,) = scene.stopped("sweep-1", "sweep-2", "sweep-3")
    scene.gone("PREEMPTED", last)
    scene.fails("train")
    (engine,) = scene.stopped("grade-1", "grade-2")
    scene.gone("PREEMPTED", engine)
    scene.queue()
    scene.accounting()
    assert "score" not in scene.went, "the engine of the other account has run all the time"

    story.title("Another account is full of its own engines: its training waits, and nothing of anybody's goes")
    scene.submit("speech", "training", 8, "learn", runs=False)
    scene.waits("learn", "AssocGrpGRES")
    story.slurm("squeue", "-h", "-A", "speech,vision", "-S", "i", "-o", "%j %a %q %T %r")
    scene.gone("PREEMPTED")
    story.slurm("scontrol", "requeue", scene.jobs["score"])
    story.runs(scene.jobs["learn"], "RUNNING")
    story.slurm("squeue", "-h", "-A", "speech", "-S", "i", "-o", "%j %a %q %T")

    story.title("Out again")
    for job in scene.jobs.values():
        lab.run("scancel", job)
    for node in lab.all_nodes:
        with contextlib.suppress(subprocess.SubprocessError):
            lab.run("scontrol", "update", f"nodename={node}", "state=resume")
    story.backstop("abort", CLUSTER, "--yes", "--reason", "the pilot is over", show=False)
    story.until("aborted", "rolled_back")
    story.backstop("detach", CLUSTER, "--restore", "--reason", "the pilot is over", "--yes")
    left_over = story.slurm("sacctmgr", "-n", "-P", "show", "qos", "format=Name,Preempt")
    assert left_over.split("\n") == ["normal|flex", "flex|"]


HEAD = """\
# Classes inside a quota on Slurm, as it went

Six nodes of eight GPUs in two islands; Slurm 22.05.8. Written by the test that asserts each of these answers
(tests/slurm/classes_story.py). What is written and why: [slurm.md](slurm.md#classes-inside-a-quota).
"""


def main() -> None:
    with running({"island1": 3, "island2": 3}) as lab, tempfile.TemporaryDirectory(prefix="backstop-story-") as home:
        story = Story(lab, Path(home), at_once)
        with story.up():
            tell(story)
        if "--write" in sys.argv:
            (ROOT / "docs" / "slurm-classes.md").write_text(HEAD + "\n".join(story.lines) + "\n")


if __name__ == "__main__":
    main()
