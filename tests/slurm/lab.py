"""A real Slurm on this machine for a test or a demonstration: munge, MariaDB, slurmdbd, slurmctld, one slurmd a node.

Everything listens on loopback, on free ports, in a folder of its own, and is stopped by its process id. Needs Debian's
packages (`PACKAGES`), as root or not. What makes it work: the daemons are run through links of the names that they
compare their own with, and a GPU is a link to /dev/null, as a GPU line without a file registers none.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
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
_TEMPLATES = Path(__file__).parents[2] / "examples" / "local-slurm"
_BINARIES = ("slurmctld-wlm", "slurmd-wlm", "slurmdbd", "sacctmgr", "munged", "mariadbd")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PATIENCE = 60.0
CLUSTER = "lab"
GPUS = 8
"""On each node."""


def missing() -> list[str]:
    """Programs that are not installed."""
    return [name for name in _BINARIES if shutil.which(name, path=_PATH) is None]


class Lab:
    """A running Slurm. `nodes` by island: island1 has the first ones."""

    def __init__(self, folder: Path, islands: Mapping[str, int]) -> None:
        self.folder = folder
        self.islands = dict(islands)
        self.nodes: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = _free_ports(4 + sum(islands.values()))
        number = 1
        for island, count in islands.items():
            self.nodes[island] = [f"gpu{n:03d}" for n in range(number, number + count)]
            number += count

    @property
    def conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{self.folder}/bin:{_PATH}"}

    @property
    def all_nodes(self) -> list[str]:
        return [node for nodes in self.nodes.values() for node in nodes]

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        for name in ("etc", "log", "run", "state", "spool", "db", "munge", "dev", "bin", "sock"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge").chmod(0o700)
        for name in ("slurmctld", "slurmd", "slurmstepd"):
            target = shutil.which(f"{name}-wlm", path=_PATH)
            (self.folder / "bin" / name).symlink_to(str(target))
        for number in range(GPUS):
            (self.folder / "dev" / f"nvidia{number}").symlink_to("/dev/null")
        self._munge()
        self._mariadb()
        self._configure()
        self.start_slurmdbd()
        self.run("sacctmgr", "-i", "add", "cluster", CLUSTER)
        self._spawn("slurmctld", f"{self.folder}/bin/slurmctld", "-D", "-f", str(self.conf))
        self.until(lambda: "is UP" in self.run("scontrol", "ping"), "slurmctld answers")
        for node in self.all_nodes:
            self.start_node(node)
        self.until(lambda: self.idle() == len(self.all_nodes), "all nodes are idle")

    def stop(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--full", "-u", getpass.getuser())
            ends = time.monotonic() + 10
            while self.run("squeue", "-h", "-o", "%i") and time.monotonic() < ends:
                time.sleep(0.2)
        order = [name for name in self._processes if name.startswith("slurmd.")]
        for name in (*order, "slurmctld", "slurmdbd", "mariadbd", "munged"):
            self.kill(name, signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """The process is gone. A node's is called slurmd. and its name."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_slurmdbd(self) -> None:
        self._spawn("slurmdbd", "slurmdbd", "-D")
        self.until(lambda: self.answers("sacctmgr", "-n", "-P", "show", "cluster"), "slurmdbd answers")

    def start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        stepd = f"{self.folder}/bin/slurmstepd"
        self._spawn(f"slurmd.{node}", f"{self.folder}/bin/slurmd", "-D", "-N", node, "-f", str(self.conf), "-d", stepd)

    # --- what people do -------------------------------------------------------------------------

    def run(self, *command: str) -> str:
        """What the command printed. Errors: subprocess.SubprocessError."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=20, check=True, cwd=self.folder
        )
        return done.stdout.strip()

    def answers(self, *command: str) -> bool:
        try:
            self.run(*command)
        except subprocess.SubprocessError:
            return False
        return True

    def until(self, true: Callable[[], Any], what: str, seconds: float = _PATIENCE) -> None:
        """It has become true. Errors: AssertionError with what was waited for."""
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
        """Those of several, in this order."""
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
        """As an administrator would."""
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

    # --- set-up ---------------------------------------------------------------------------------

    def _spawn(self, name: str, *command: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def _munge(self) -> None:
        key = self.folder / "munge" / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        where = self.folder / "munge"
        self._spawn(
            *("munged", "munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={self.folder}/sock/munge.socket", f"--pid-file={where}/munged.pid"),
            *(f"--log-file={where}/munged.log", f"--seed-file={where}/munged.seed", "--num-threads=4"),
        )

    def _mariadb(self) -> None:
        data = self.folder / "db"
        subprocess.run(
            [
                *("mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"),
                *(f"--user={getpass.getuser()}", f"--datadir={data}", "--skip-name-resolve"),
            ],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        first = self.folder / "etc" / "first.sql"
        first.write_text(
            "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
            "CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
            "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';\n"
        )
        self._spawn(
            *("mariadbd", "mariadbd", "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={data}"),
            *(f"--socket={self.folder}/run/db.sock", f"--pid-file={self.folder}/run/db.pid"),
            *("--bind-address=127.0.0.1", f"--port={self._ports[0]}", "--skip-name-resolve", f"--init-file={first}"),
            *("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-lock-wait-timeout=900"),
            *("--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--performance-schema=0"),
        )
        asked = ("mariadb", "--no-defaults", "-uslurm", "-pslurm", "-h127.0.0.1", f"-P{self._ports[0]}")
        self.until(lambda: self.answers(*asked, "slurm_acct_db", "-e", "select 1"), "MariaDB answers")
        self.until(lambda: self.answers("munge", "-n", "-S", f"{self.folder}/sock/munge.socket"), "munge answers")

    def _configure(self) -> None:
        database, daemon, controller, *nodes = self._ports
        etc = self.folder / "etc"
        known = {"folder": self.folder, "user": getpass.getuser(), "cluster": CLUSTER}
        known |= {"database": database, "daemon": daemon, "controller": controller}
        for name, text in {
            "slurmdbd.conf": template("slurmdbd").format(**known),
            "slurm.conf": template("slurm").format(**known) + self._node_lines(nodes),
            "gres.conf": f"NodeName={self._range(self.all_nodes)} Name=gpu Type=h100 "
            f"File={self.folder}/dev/nvidia[0-{GPUS - 1}]\n",
            "topology.conf": "".join(
                f"SwitchName={island} Nodes={self._range(names)}\n" for island, names in self.nodes.items()
            )
            + f"SwitchName=spine Switches={','.join(self.nodes)}\n",
            "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
        }.items():
            (etc / name).write_text(text)
        (etc / "slurmdbd.conf").chmod(0o600)

    def _node_lines(self, ports: list[int]) -> str:
        lines = [
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=64 RealMemory=1000000 "
            f"Gres=gpu:h100:{GPUS} State=UNKNOWN"
            for node, port in zip(self.all_nodes, ports, strict=False)
        ]
        parts = {**self.nodes, "all": self.all_nodes}
        for part, names in parts.items():
            default = " Default=YES" if part == "all" else ""
            lines.append(
                f"PartitionName={part} Nodes={self._range(names)}{default} State=UP MaxTime=INFINITE DefaultTime=60"
            )
        return "\n".join(lines) + "\n"

    @staticmethod
    def _range(names: list[str]) -> str:
        return f"gpu[{names[0][3:]}-{names[-1][3:]}]"


@contextlib.contextmanager
def running(islands: Mapping[str, int]) -> Iterator[Lab]:
    """A Slurm with so many nodes in each island; stopped and removed afterwards."""
    lab = Lab(Path(tempfile.mkdtemp(prefix="backstop-slurm-")), islands)
    try:
        lab.folder.chmod(0o755)
        lab.start()
        yield lab
    finally:
        lab.stop()


def template(name: str) -> str:
    """A configuration file of Slurm's, to be filled in: the same that examples/local-slurm uses."""
    return (_TEMPLATES / f"{name}.conf.in").read_text()


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
