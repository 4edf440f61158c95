"""A real Slurm on this machine for a test: what examples/local-slurm makes, and what people do with it.

Everything listens on loopback, on free ports, in a folder of its own, and is stopped by its process id. Needs Debian's
packages (`PACKAGES`), as root or not.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurm-client",
    "munge",
    "mariadb-server",
    "slurm-wlm-basic-plugins",
)
_PROGRAM = Path(__file__).parents[2] / "examples" / "local-slurm" / "cluster.py"
_BINARIES = ("slurmctld-wlm", "slurmd-wlm", "slurmdbd", "sacctmgr", "munged", "mariadbd")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PATIENCE = 180.0
CLUSTER = "lab"
GPUS = 8
"""On each node."""


def missing() -> list[str]:
    """Programs that are not installed."""
    return [name for name in _BINARIES if shutil.which(name, path=_PATH) is None]


class Lab:
    """A running Slurm. `folder` is called as the cluster is. `islands`: nodes of each; island1 has the first ones."""

    def __init__(self, folder: Path, islands: Mapping[str, int]) -> None:
        self.folder = folder
        self._islands = ",".join(f"{island}:{count}" for island, count in islands.items())
        self.all_nodes = [f"gpu{n:03d}" for n in range(1, sum(islands.values()) + 1)]

    @property
    def conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{self.folder}/bin:{_PATH}"}

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """All of it runs; what runs already stays."""
        self._make("controller", self._islands)
        self._make("nodes", str(len(self.all_nodes)))

    def stop(self) -> None:
        self._make("down")

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """The process is gone. A node's is called slurmd. and its name."""
        pid, _ = (self.folder / "run" / f"{name}.started").read_text().split()
        os.kill(int(pid), how)
        self.until(lambda: not _runs(pid), f"{name} has ended")

    def _make(self, verb: str, *words: str) -> None:
        made = subprocess.run(
            [sys.executable, str(_PROGRAM), verb, CLUSTER, str(self.folder.parent), *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr

    # --- what people do -------------------------------------------------------------------------

    def run(self, *command: str) -> str:
        """Run a command; return what it printed. Errors: subprocess.SubprocessError."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=90, check=True, cwd="/"
        )
        return done.stdout.strip()

    def until(self, true: Callable[[], Any], what: str, seconds: float = _PATIENCE) -> None:
        """Wait until the condition is true. Errors: AssertionError naming it."""
        ends = time.monotonic() + seconds
        while True:
            with contextlib.suppress(subprocess.SubprocessError):
                if true():
                    return
            assert time.monotonic() < ends, f"not within {seconds:g} s: {what}"
            time.sleep(0.1)

    def idle(self) -> int:
        return len(set(self.run("sinfo", "-h", "-N", "-p", "all", "-t", "idle", "-o", "%N").split()))

    def account(self, name: str, parent: str = "root", gpus: int | None = None, **more: str) -> None:
        """An account with a limit, for whoever runs this."""
        self.accounts([name], parent, gpus, **more)

    def accounts(self, names: Sequence[str], parent: str = "root", gpus: int | None = None, **more: str) -> None:
        """Accounts that are alike: each command takes half a second, for however many."""
        these = ",".join(names)
        self.run("sacctmgr", "-i", "-Q", "add", "account", these, f"Cluster={CLUSTER}", f"Parent={parent}")
        self.run("sacctmgr", "-i", "-Q", "add", "user", getpass.getuser(), f"Account={these}", f"Cluster={CLUSTER}")
        settings = [f"{key}={value}" for key, value in more.items()]
        if gpus is not None:
            settings.append(f"GrpTRES=gres/gpu={gpus}")
        if settings:
            self.run("sacctmgr", "-i", "-Q", "modify", "account", these, f"Cluster={CLUSTER}", "set", *settings)

    def limit(self, account: str) -> str:
        """The account's own limit of GPUs as sacctmgr has it; empty: none."""
        return self.limits(account)[0]

    def limits(self, *accounts: str) -> list[str]:
        """Return the limits of several accounts, in this order."""
        rows = self.run(
            *("sacctmgr", "-n", "-P", "show", "assoc", f"cluster={CLUSTER}", f"account={','.join(accounts)}", "user="),
            "format=Account,GrpTRES",
        )
        tres = dict(row.split("|") for row in rows.splitlines())
        return [
            dict(part.partition("=")[::2] for part in tres[name].split(",") if part).get("gres/gpu", "")
            for name in accounts
        ]

    def set_limit(self, account: str, gpus: int) -> None:
        """Set a limit, as an administrator would."""
        self.run(
            *("sacctmgr", "-i", "-Q", "modify", "account", account, f"Cluster={CLUSTER}", "set"),
            f"GrpTRES=gres/gpu={gpus}",
        )

    def submit(self, account: str, gpus: int, name: str, *options: str) -> str:
        """A job of whole nodes, or of a part of one; answers its number."""
        nodes = max(1, gpus // GPUS)
        return self.run(
            *("sbatch", "--parsable", "-o", "/dev/null", "-A", account, "-J", name, f"-N{nodes}"),
            *(f"--gres=gpu:{gpus // nodes}", *options, "--wrap", "sleep 3600"),
        )

    def job(self, number: str) -> tuple[str, str]:
        """Its state, and the reason for it."""
        state, _, reason = self.run("squeue", "-h", "-j", number, "-o", "%T|%r").partition("|")
        return state, reason


@contextlib.contextmanager
def running(islands: Mapping[str, int]) -> Iterator[Lab]:
    """A Slurm with so many nodes in each island; stopped and removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="backstop-slurm-") as parent:
        Path(parent).chmod(0o755)
        lab = Lab(Path(parent) / CLUSTER, islands)
        try:
            lab.start()
            yield lab
        finally:
            lab.stop()


def _runs(pid: str) -> bool:
    """One that has ended may stand in the table until somebody asks how."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
