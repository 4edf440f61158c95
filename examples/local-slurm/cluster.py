#!/usr/bin/env python3
"""What a site would have: the programs that the recipe beside it runs, here for a real Slurm on this machine.

    cluster.py controller CLUSTER FOLDER ISLAND:NODES,...   munge, MariaDB, slurmdbd, slurmctld; nodes are declared
    cluster.py nodes CLUSTER FOLDER NODES                   so many nodes run: one slurmd each; those that run stay
    cluster.py accounts CLUSTER FOLDER ROOT TEAM:GPUS,...   an account for each team, with its limit of GPUs
    cluster.py check-idle CLUSTER FOLDER SHARE              scontrol: that share of the declared nodes answers
    cluster.py check-job CLUSTER FOLDER ROOT                a job across all idle nodes ends well
    cluster.py stop-nodes CLUSTER FOLDER                    every slurmd has ended
    cluster.py down CLUSTER FOLDER                          everything has ended, the folder is gone

Each may be run again: what is there already stays. Eight GPUs a node: links to /dev/null, as a GPU without a file
registers none. Debian's packages of Slurm, munge and MariaDB; all listens on loopback; nothing needs systemd.
"""

import contextlib
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GPUS = 8
PATIENCE = 90.0
PATH = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


class Fault(Exception):
    """Said in one line; the step has failed."""


class Site:
    def __init__(self, cluster: str, folder: str) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", cluster):
            raise Fault(f"a cluster's name is small letters, digits and '-' here, not {cluster!r}")
        self.cluster = cluster
        self.folder = Path(folder) / cluster
        self.environment = {
            "HOME": os.environ.get("HOME", "/"),
            "PATH": f"{self.folder}/bin:{PATH}",
            "SLURM_CONF": f"{self.folder}/etc/slurm.conf",
        }

    # --- steps ----------------------------------------------------------------------------------

    def controller(self, islands: str) -> None:
        wanted = {name: int(nodes) for name, _, nodes in (part.partition(":") for part in islands.split(","))}
        plan = self.folder / "plan.json"
        if not plan.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o755)
            ports = free_ports(3 + sum(wanted.values()))
            plan.write_text(json.dumps({"islands": wanted, "ports": ports}))
        for name in ("etc", "log", "run", "state", "spool", "db", "munge", "dev", "bin", "sock"):
            (self.folder / name).mkdir(exist_ok=True)
        self._tools()
        self._munge()
        self._database()
        self._configure()
        self.daemon("slurmdbd", "slurmdbd", "-D")
        self.until(lambda: self.answers("sacctmgr", "-n", "-P", "show", "cluster"), "slurmdbd answers")
        if self.cluster not in self.run("sacctmgr", "-n", "-P", "show", "cluster", "format=Cluster").split():
            self.run("sacctmgr", "-i", "add", "cluster", self.cluster)
        self.daemon("slurmctld", f"{self.folder}/bin/slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
        self.until(lambda: "is UP" in self.run("scontrol", "ping"), "slurmctld answers")
        print(f"the controller of {self.cluster} answers; {len(self.declared)} nodes are declared")

    def nodes(self, count: str) -> None:
        wanted = self.declared[: int(count)]
        for node in wanted:
            (self.folder / "spool" / node).mkdir(exist_ok=True)
            self.daemon(
                f"slurmd.{node}",
                *(f"{self.folder}/bin/slurmd", "-D", "-N", node, "-f", self.environment["SLURM_CONF"]),
                *("-d", f"{self.folder}/bin/slurmstepd"),
            )
        self.until(lambda: set(wanted) <= set(self.idle()) | set(self.busy()), f"{len(wanted)} nodes have registered")
        print(f"{len(wanted)} of {len(self.declared)} nodes of {self.cluster} have registered")

    def accounts(self, root: str, teams: str) -> None:
        there = set(self.run("sacctmgr", "-n", "-P", "show", "account", "format=Account").split())
        limits = dict(part.partition(":")[::2] for part in teams.split(","))
        for name, parent in [(root, "root"), *((team, root) for team in limits)]:
            if name not in there:
                self.run("sacctmgr", "-i", "-Q", "add", "account", name, f"Cluster={self.cluster}", f"Parent={parent}")
            me = (f"Account={name}", f"Cluster={self.cluster}")
            if not self.run("sacctmgr", "-n", "-P", "show", "assoc", *me, f"user={getpass.getuser()}", "format=User"):
                self.run("sacctmgr", "-i", "-Q", "add", "user", getpass.getuser(), *me)
        for team, gpus in limits.items():
            of = (team, f"Cluster={self.cluster}")
            self.run("sacctmgr", "-i", "-Q", "modify", "account", *of, "set", f"GrpTRES=gres/gpu={int(gpus)}")
        print(f"{len(limits)} accounts under {root}: " + ", ".join(f"{t} {g}" for t, g in limits.items()))

    def stop_nodes(self) -> None:
        for pid in sorted(self.pids("slurmd.")):
            end(pid)
        print(f"no node of {self.cluster} runs")

    def down(self) -> None:
        self.end_jobs()
        self.stop_nodes()
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            for pid in self.pids(name):
                end(pid)
        shutil.rmtree(self.folder, ignore_errors=True)
        print(f"nothing of {self.cluster} is left")

    def end_jobs(self) -> None:
        """A job is nobody's child: it outlives its node's daemon. One whose node is gone is not waited for long."""
        if self.pids("slurmctld") and self.answers("scancel", "--full", "--user", getpass.getuser()):
            with contextlib.suppress(Fault):
                self.until(lambda: not self.run("squeue", "-h", "-o", "%A"), "jobs have ended", 10.0)

    # --- checks ---------------------------------------------------------------------------------

    def check_idle(self, share: str) -> None:
        well, all_ = len(self.idle()) + len(self.busy()), len(self.declared)
        print(f"{well} of {all_} nodes answer")
        if well < float(share) * all_:
            raise Fault(f"{float(share):.0%} should")

    def check_job(self, root: str) -> None:
        nodes = self.idle()
        if not nodes:
            raise Fault("no node is idle")
        account = self.run("sacctmgr", "-n", "-P", "show", "assoc", f"user={getpass.getuser()}", "format=Account")
        first = next(a for a in account.split() if a != root)
        asked = ("-A", root if root in account.split() else first, f"-N{len(nodes)}", f"--gres=gpu:{GPUS}")
        said = self.run("srun", "--immediate=20", "-t", "1", "-J", "first-job", *asked, "hostname")
        print(f"a job on {len(nodes)} nodes and {len(nodes) * GPUS} GPUs answered {len(said.splitlines())} times")
        if len(said.splitlines()) != len(nodes):
            raise Fault("each node should answer once")

    # --- what is there --------------------------------------------------------------------------

    @property
    def plan(self) -> dict[str, Any]:
        file = self.folder / "plan.json"
        if not file.exists():
            raise Fault(f"there is no {self.cluster} in {self.folder.parent}: its controller was never started")
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    @property
    def islands(self) -> dict[str, list[str]]:
        found, number = {}, 1
        for name, count in self.plan["islands"].items():
            found[name] = [f"gpu{n:03d}" for n in range(number, number + count)]
            number += count
        return found

    @property
    def declared(self) -> list[str]:
        return [node for nodes in self.islands.values() for node in nodes]

    def idle(self) -> list[str]:
        return sorted(set(self.run("sinfo", "-h", "-N", "-p", "all", "-t", "idle", "-o", "%N").split()))

    def busy(self) -> list[str]:
        return sorted(set(self.run("sinfo", "-h", "-N", "-p", "all", "-t", "alloc,mix", "-o", "%N").split()))

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, cwd="/", check=False
        )
        if done.returncode:
            raise Fault(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[:300]}")
        return done.stdout.strip()

    def answers(self, *command: str) -> bool:
        try:
            self.run(*command)
        except (Fault, subprocess.TimeoutExpired):
            return False
        return True

    def until(self, true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        ends = time.monotonic() + seconds
        while True:
            try:
                if true():
                    return
            except (Fault, subprocess.TimeoutExpired):
                pass
            if time.monotonic() > ends:
                raise Fault(f"not within {seconds:g} s: {what} (logs in {self.folder}/log)")
            time.sleep(0.2)

    # --- processes ------------------------------------------------------------------------------

    def pids(self, prefix: str) -> list[int]:
        """Of those that this folder started and that still run."""
        found = []
        for note in sorted((self.folder / "run").glob(f"{prefix}*.started")):
            pid, since = (int(word) for word in note.read_text().split())
            if started(pid) == since:
                found.append(pid)
        return found

    def daemon(self, name: str, *command: str) -> None:
        """It runs, in a session of its own, and outlives us."""
        note = self.folder / "run" / f"{name}.started"
        if note.exists() and self.pids(name):
            return
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        note.write_text(f"{process.pid} {started(process.pid)}")

    # --- set-up ---------------------------------------------------------------------------------

    def _tools(self) -> None:
        # The daemons compare their own names with these; Debian calls the programs otherwise.
        for name in ("slurmctld", "slurmd", "slurmstepd"):
            link, program = self.folder / "bin" / name, shutil.which(f"{name}-wlm", path=PATH)
            if program is None:
                raise Fault(
                    f"{name}-wlm is not installed: apt-get install slurmctld slurmd slurmdbd munge mariadb-server"
                )
            if not link.exists():
                link.symlink_to(program)
        for number in range(GPUS):
            if not (device := self.folder / "dev" / f"nvidia{number}").is_symlink():
                device.symlink_to("/dev/null")

    def _munge(self) -> None:
        where = self.folder / "munge"
        where.chmod(0o700)
        key = where / "munge.key"
        if not key.exists():
            key.write_bytes(os.urandom(1024))
            key.chmod(0o400)
        self.daemon(
            *("munged", "munged", "--foreground", "--force", f"--key-file={key}", "--num-threads=2"),
            *(f"--socket={self.folder}/sock/munge.socket", f"--pid-file={where}/munged.pid"),
            *(f"--log-file={where}/munged.log", f"--seed-file={where}/munged.seed"),
        )
        self.until(lambda: self.answers("munge", "-n", "-S", f"{self.folder}/sock/munge.socket"), "munge answers")

    def _database(self) -> None:
        data, port = self.folder / "db", self.plan["ports"][0]
        if not (data / "mysql").exists():
            self.run(
                *("mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"),
                *(f"--user={getpass.getuser()}", f"--datadir={data}", "--skip-name-resolve"),
            )
        first = self.folder / "etc" / "first.sql"
        first.write_text(
            "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
            "CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
            "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';\n"
        )
        self.daemon(
            *("mariadbd", "mariadbd", "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={data}"),
            *(f"--socket={self.folder}/run/db.sock", f"--pid-file={self.folder}/run/db.pid", "--skip-name-resolve"),
            *("--bind-address=127.0.0.1", f"--port={port}", f"--init-file={first}", "--performance-schema=0"),
            *("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0"),
            "--innodb-lock-wait-timeout=900",
        )
        asked = ("mariadb", "--no-defaults", "-uslurm", "-pslurm", "-h127.0.0.1", f"-P{port}")
        self.until(lambda: self.answers(*asked, "slurm_acct_db", "-e", "select 1"), "MariaDB answers")

    def _configure(self) -> None:
        database, daemon, controller, *ports = self.plan["ports"]
        known = {"folder": self.folder, "user": getpass.getuser(), "cluster": self.cluster}
        known |= {"database": database, "daemon": daemon, "controller": controller}
        nodes = [
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=64 RealMemory=1000000 "
            f"Gres=gpu:h100:{GPUS} State=UNKNOWN"
            for node, port in zip(self.declared, ports, strict=True)
        ]
        parts = {**self.islands, "all": self.declared}
        for part, names in parts.items():
            default = " Default=YES" if part == "all" else ""
            nodes.append(
                f"PartitionName={part} Nodes={','.join(names)}{default} State=UP MaxTime=INFINITE DefaultTime=60"
            )
        switches = [f"SwitchName={name} Nodes={','.join(names)}" for name, names in self.islands.items()]
        texts = {
            "slurmdbd.conf": (HERE / "slurmdbd.conf.in").read_text().format(**known),
            "slurm.conf": "\n".join([(HERE / "slurm.conf.in").read_text().format(**known), *nodes, ""]),
            "gres.conf": f"NodeName={','.join(self.declared)} Name=gpu Type=h100 "
            f"File={self.folder}/dev/nvidia[0-{GPUS - 1}]\n",
            "topology.conf": "\n".join([*switches, f"SwitchName=spine Switches={','.join(self.islands)}", ""]),
            "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
        }
        for name, text in texts.items():
            (self.folder / "etc" / name).write_text(text)
        (self.folder / "etc" / "slurmdbd.conf").chmod(0o600)


def started(pid: int) -> int:
    """When the process was started, in the kernel's ticks; 0 where there is none: numbers are used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def end(pid: int) -> None:
    since = started(pid)
    for how, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
        if started(pid) != since:
            return
        os.kill(pid, how)
        ends = time.monotonic() + seconds
        while started(pid) == since and since and time.monotonic() < ends:
            time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


VERBS: dict[str, Callable[..., None]] = {
    "controller": Site.controller,
    "nodes": Site.nodes,
    "accounts": Site.accounts,
    "check-idle": Site.check_idle,
    "check-job": Site.check_job,
    "stop-nodes": Site.stop_nodes,
    "down": Site.down,
}


def main(words: list[str]) -> int:
    if len(words) < 3 or words[0] not in VERBS:
        print(__doc__, file=sys.stderr)
        return 2
    verb, cluster, folder, *rest = words
    try:
        VERBS[verb](Site(cluster, folder), *rest)
    except TypeError:
        print(__doc__, file=sys.stderr)
        return 2
    except (Fault, OSError, ValueError, subprocess.SubprocessError) as fault:
        print(f"{verb} {cluster}: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
