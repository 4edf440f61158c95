"""A whole rollout on a real Slurm, by the commands that people give: `python -m tests.slurm.story`.

Everything that is asserted is read from sacctmgr, squeue and scontrol. What is typed and printed is the transcript that
docs/slurm-story.md shows; numbers of jobs, hashes and times in it are replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.slurm.lab import CLUSTER, Lab, running

ROOT = Path(__file__).parents[2]
BACKSTOP = (sys.executable, "-m", "cli.main")
"""Of the checkout at hand, whichever is installed."""
POLICY = {
    "notice": "0s",
    "soak_buffered": "15s",  # its limits are read meanwhile, three calls of Slurm on a busy machine
    "soak_enforced": "3s",
    "breach_after": "3s",
    "clear_after": "2s",
    "recover_after": "3s",
    "max_moved_gpus": 10_000,
    "plausible_drop": 0.5,  # two nodes of six fail at once here
}
PATIENCE = 90.0


def at_once(line: str) -> None:
    """Printed before the next command runs, also in a pipe."""
    print(line, flush=True)


class Story:
    """`say` gets each line of the transcript as it is; `lines` has it as the page is to show it."""

    def __init__(self, lab: Lab, home: Path, say: Callable[[str], object]) -> None:
        self.lab = lab
        self.home = home
        self.lines: list[str] = []
        self._say = say
        self._waited_for = ""

    # --- telling --------------------------------------------------------------------------------

    def _tell(self, *lines: str) -> None:
        for line in lines:
            self._say(line.rstrip())
            self.lines.append(self.steady(line))

    def steady(self, line: str) -> str:
        """Return the line as the page has it, with fixed dates, ids and hashes."""
        told = re.sub(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?Z?", "2026-11-22 09:00:00Z", line)
        told = re.sub(rf"{CLUSTER}/\d{{8}}T\d{{6}}Z-[0-9a-f]{{6}}", f"{CLUSTER}/1", told)
        return re.sub(r"\b([Pp])lan [0-9a-f]{16}", r"\1lan 0123456789abcdef", told).rstrip()

    def waits(self, what: str) -> None:
        """Print what the story waits for whenever that changes; it is no part of the page."""
        if what != self._waited_for:
            self._waited_for = what
            self._say(f"  ... {what}")

    def title(self, text: str) -> None:
        self._tell("", f"## {text}", "")

    def shown(self, command: str, output: str) -> None:
        self._tell("```console", f"$ {command}", *output.splitlines(), "```")

    def backstop(self, *arguments: str, show: bool = True) -> str:
        """Run a command; return what it printed. Errors: AssertionError if it failed."""
        done = subprocess.run(
            [*BACKSTOP, *arguments],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        if show:
            self.shown(shlex.join(["backstop", *arguments]), done.stdout)
        return done.stdout

    def slurm(self, *command: str, show: bool = True) -> str:
        found = self.lab.run(*command)
        if show:
            self.shown(shlex.join(command), found)
        return found

    def limits(self, *wanted: tuple[str, str]) -> None:
        """The accounts' limits of GPUs, as sacctmgr has them, are these."""
        shown = self.slurm(
            *(
                "sacctmgr",
                "-n",
                "-P",
                "show",
                "assoc",
                f"cluster={CLUSTER}",
                "user=",
                "format=Account,ParentName,GrpTRES",
            )
        )
        found = {row.split("|")[0]: row.split("|")[2] for row in shown.splitlines()}
        assert {name: found[name] for name, _ in wanted} == dict(wanted), shown

    # --- the world ------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("BACKSTOP", "TEMPORAL"))}
        return {
            **keep,
            "BACKSTOP_HOME": str(self.home),
            "BACKSTOP_ACTOR": "tpm",
            "BACKSTOP_SLURM": str(self.home / "slurm.json"),
            "BACKSTOP_WATCH_INTERVAL": "0.5",
            "COLUMNS": "160",
            "PYTHONPATH": str(ROOT),
        }

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Temporal, a ledger and a worker that reaches this Slurm."""
        self.home.mkdir(parents=True, exist_ok=True)
        connection = {"conf": str(self.lab.conf), "path": f"{self.lab.folder}/bin"}
        (self.home / "slurm.json").write_text(json.dumps({"connections": {"lab": connection}}))
        self.waits("Temporal, a ledger and a worker are being started")
        log = (self.home / "up.log").open("w")
        process = subprocess.Popen(
            [*BACKSTOP, "up", "--home", str(self.home), "--port", "0", "--ui-port", "0"],
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            ends = time.monotonic() + PATIENCE
            while "worker" not in (self.home / "up.log").read_text():
                dead = process.poll() is not None or time.monotonic() > ends
                assert not dead, (self.home / "up.log").read_text()
                time.sleep(0.2)
            yield
        except BaseException:
            print((self.home / "up.log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            log.close()

    def status(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.backstop("status", CLUSTER, "--json", show=False))
        return found

    def until(self, *stages: str) -> None:
        last: dict[str, object] = {}
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            last = self.status()
            if last["stage"] in stages:
                return
            gates = [gate["text"] for gate in last.get("waiting_for") or [] if not gate["met"]]  # type: ignore[attr-defined]
            self.waits(f"{last['stage']}: {'; '.join(gates) or 'it goes on'}")
            time.sleep(0.3)
        raise AssertionError(f"{last.get('stage')}, not {stages}: {last.get('waiting_for')} {last.get('holds')}")

    def drift(self) -> str:
        """The reason of its hold, once there is one."""
        ends = time.monotonic() + PATIENCE
        while True:
            holds = self.status()["holds"]
            for hold in holds:  # type: ignore[attr-defined]
                if hold["id"] == "drift":
                    return str(hold["reason"])
            assert time.monotonic() < ends, holds
            time.sleep(0.3)

    def runs(self, job: str, *states: str) -> str:
        """The reason that Slurm gives, once the job is in one of these states."""
        self.lab.until(lambda: self.lab.job(job)[0] in states, f"job {job} is {states}")
        return self.lab.job(job)[1]


def tell(story: Story) -> None:
    """The whole of it. Errors: AssertionError where something is not so."""
    lab = story.lab
    lab.run("sacctmgr", "-i", "-Q", "add", "qos", "flex")
    lab.run("sacctmgr", "-i", "-Q", "modify", "qos", "flex", "set", "Priority=0", "PreemptMode=requeue")
    lab.run("sacctmgr", "-i", "-Q", "modify", "qos", "normal", "set", "Priority=100", "Preempt=flex")
    lab.account("research-org")
    lab.account("training", "research-org", 24)
    lab.account("evals", "research-org", 20)
    lab.account("flex-pool")
    lab.account("training-flex", "flex-pool", qos="flex", defaultqos="flex")
    train = lab.submit("training", 16, "train")
    story.runs(train, "RUNNING")

    story.title("What there is")
    story.limits(("research-org", ""), ("training", "gres/gpu=24"), ("evals", "gres/gpu=20"))
    story.slurm("squeue", "-h", "-o", "%j %a %q %T %b %D")

    story.title("Into the ledger, as Slurm has it")
    story.backstop("fleet", "import", "--slurm", CLUSTER, "--root", "research-org", "--connection", "lab")
    story.backstop("plan", CLUSTER)

    story.title("A rollout: the hard limits are in Slurm")
    settings = [part for key, value in POLICY.items() for part in ("--policy", f"{key}={value}")]
    story.backstop("launch", CLUSTER, "--yes", "--reason", "pilot", *settings, show=False)
    plan = str(story.status()["plan_hash"])
    story.backstop("approve", CLUSTER, "--plan", plan)
    story.until("buffered")
    story.limits(("research-org", "gres/gpu=44"), ("training", "gres/gpu=24"), ("evals", "gres/gpu=20"))
    story.until("monitored")
    story.limits(("research-org", "gres/gpu=40"), ("training", "gres/gpu=23"), ("evals", "gres/gpu=17"))

    story.title("A job above its quota is held by Slurm, and for that reason")
    over = lab.submit("training", 8, "train-more")
    lab.until(lambda: lab.job(over)[1] == "AssocGrpGRES", "held for its account's limit")
    story.slurm("squeue", "-h", "-n", "train-more", "-o", "%j %a %T %r")
    assert lab.job(over) == ("PENDING", "AssocGrpGRES")
    lab.run("scancel", over)

    story.title("Flex fills what is free, and gives it back to who has quota")
    sweeps = [lab.submit("training-flex", 8, f"sweep-{n}", "--qos=flex", "--requeue") for n in range(4)]
    for sweep in sweeps:
        story.runs(sweep, "RUNNING")
    graded = lab.submit("evals", 16, "grade")
    story.runs(graded, "RUNNING")
    counted = story.slurm("sh", "-c", "squeue -h -t RUNNING -o %q | sort | uniq -c")
    assert counted.split() == ["2", "flex", "2", "normal"]
    assert lab.job(graded)[0] == "RUNNING"
    left = [s for s in sweeps if lab.job(s)[0] == "RUNNING"]
    assert len(left) == 2, "two of four had to go"

    story.title("Nodes fail: the promise is withdrawn, and Slurm admits again what it did before")
    for node in lab.all_nodes[-2:]:
        story.slurm("scontrol", "update", f"nodename={node}", "state=drain", "reason=Xid 79")
    story.until("rolled_back")
    status = story.status()
    held = {t["team"]: t["quota_gpus"] for t in status["teams"] if t["leaf"]}  # type: ignore[attr-defined]
    assert sum(held.values()) == 32, "no more than is healthy"
    story.backstop("why", "training", "--cluster", CLUSTER, "--all")
    story.limits(("research-org", "gres/gpu=44"), ("training", "gres/gpu=24"), ("evals", "gres/gpu=20"))

    story.title("The nodes are back: it tries again by itself")
    for node in lab.all_nodes[-2:]:
        story.slurm("scontrol", "update", f"nodename={node}", "state=resume")
    story.until("monitored")
    story.limits(("research-org", "gres/gpu=40"), ("training", "gres/gpu=23"), ("evals", "gres/gpu=17"))

    story.title("Somebody raises a limit, which Slurm cannot refuse: it is found, and says who")
    lab.run("sacctmgr", "-i", "-Q", "modify", "account", "evals", "set", "GrpTRES=gres/gpu=22")
    assert "by sacctmgr" in story.drift()
    story.limits(("research-org", "gres/gpu=40"), ("evals", "gres/gpu=22"))
    story.backstop("resolve", CLUSTER, "--hold", "drift", "--how", "restore", "--reason", "not agreed")
    lab.until(lambda: lab.limit("evals") == "17", "ours again")

    story.title("Another raise is accepted: the limit above all follows, as hardware backs it")
    lab.run("sacctmgr", "-i", "-Q", "modify", "account", "evals", "set", "GrpTRES=gres/gpu=21")
    story.drift()
    story.limits(("research-org", "gres/gpu=40"), ("evals", "gres/gpu=21"))
    story.backstop("resolve", CLUSTER, "--hold", "drift", "--how", "accept", "--reason", "agreed")
    lab.until(lambda: lab.limit("research-org") == "44", "it fits what is accepted")
    story.limits(("research-org", "gres/gpu=44"), ("training", "gres/gpu=23"), ("evals", "gres/gpu=21"))

    story.title("Out again, and Slurm is as it was")
    story.backstop("close", CLUSTER, "--reason", "the pilot is over", "--yes", show=False)
    story.until("closed")
    ends = time.monotonic() + PATIENCE
    while "rollout" in str(story.backstop("fleet", "show", CLUSTER, "--json", show=False)) and time.monotonic() < ends:
        if json.loads(story.backstop("fleet", "show", "--json", show=False))["clusters"][0]["stage"] is None:
            break
        time.sleep(0.3)
    story.backstop("detach", CLUSTER, "--restore", "--reason", "the pilot is over", "--yes")
    story.limits(("research-org", ""), ("training", "gres/gpu=24"), ("evals", "gres/gpu=21"))


HEAD = """\
# A rollout on Slurm, as it went

Six nodes of eight GPUs in two islands; Slurm 22.05.8. Written by the test that asserts each of these answers
(tests/slurm/story.py; `make slurm-demo` plays it on any Debian machine).
"""


def main() -> None:
    with running({"island1": 3, "island2": 3}) as lab, tempfile.TemporaryDirectory(prefix="backstop-story-") as home:
        story = Story(lab, Path(home), at_once)
        with story.up():
            tell(story)
        if "--write" in sys.argv:
            (ROOT / "docs" / "slurm-story.md").write_text(HEAD + "\n".join(story.lines) + "\n")


if __name__ == "__main__":
    main()
