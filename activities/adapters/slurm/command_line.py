"""Runs Slurm's own command line tools, here or over SSH.

Every call has a time limit, after which its process is killed: a late write of a dead call must not arrive after a
newer one.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta

from pydantic import Field

from models.base import Duration, Model, Name
from models.errors import Refusal, Unavailable

_FORBIDDEN = ("access denied", "permission denied", "you are not running a supported", "only admins", "not privileged")
_NOTHING = "Nothing modified"
_WHOLE_LISTS = "SLURM_BITSTR_LEN"
"""The variable with which Slurm cuts a job array's tasks: at 64 characters by default, never at 0 (man squeue)."""
_SSH = ("ssh", "-oBatchMode=yes", "-oConnectTimeout=10", "-oLogLevel=ERROR")
"""LogLevel=ERROR suppresses banners, whose text on denied access could be mistaken for an error."""


class Connection(Model):
    """A way to reach one Slurm, in the worker's own settings."""

    ssh: Name | None = None
    """user@host whose shell has Slurm's commands; None: this machine has them."""
    ssh_options: tuple[Name, ...] = ()
    conf: Name | None = None
    """The value of SLURM_CONF; None: Slurm's default."""
    path: Name | None = None
    """The folder of Slurm's commands, searched before the usual places; None: only those."""
    timeout: Duration = Field(default=timedelta(seconds=20), gt=timedelta(0), le=timedelta(seconds=50))


class Connections(Model):
    """The file that BACKSTOP_SLURM names."""

    connections: dict[Name, Connection]


LOCAL: Mapping[str, Connection] = {"local": Connection()}


class Talk:
    """The tools of one Slurm. `calls` counts them, for measuring."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.calls = 0

    def run(self, *command: str, stdin: str | None = None) -> str:
        """Run a command with this standard input; return its output. Errors: Unavailable; Refusal without the right."""
        self.calls += 1
        seconds = self._connection.timeout.total_seconds()
        try:
            done = subprocess.run(
                self._line(command),
                input=stdin,
                env=self._environment(),
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # a person's text may lose a letter, and the answer is kept
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{command[0]} did not answer within {seconds:g} s") from None
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be run: {error}") from None
        reason = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-300:]
        # For commands on standard input sacctmgr reports a failure on standard error alone.
        failed = done.returncode != 0 or "error:" in done.stderr
        # Only standard error is searched: the answer is full of words that people have written.
        if failed and any(words in done.stderr.lower() for words in _FORBIDDEN):
            raise Refusal(f"Slurm does not let this worker run {command[0]} {' '.join(command[1:4])}: {reason}")
        if failed:
            raise Unavailable(f"{command[0]} failed: {reason or f'exit code {done.returncode}'}")
        return done.stdout.strip()

    def may(self, *command: str) -> bool:
        """Return whether we have the right, by a change of something that does not exist. Errors: Unavailable."""
        try:
            self.run(*command)
        except Refusal:
            return False
        except Unavailable as error:
            if _NOTHING not in error.message:
                raise
        return True

    def _line(self, command: Sequence[str]) -> list[str]:
        if self._connection.ssh is None:
            return list(command)
        conf = [] if self._connection.conf is None else [f"SLURM_CONF={self._connection.conf}"]
        far = ["env", f"{_WHOLE_LISTS}=0", *conf, *command]
        # The far shell reads one line of text.
        return [*_SSH, *self._connection.ssh_options, self._connection.ssh, "--", shlex.join(far)]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if self._connection.ssh is None:
            if self._connection.conf is not None:
                environment["SLURM_CONF"] = self._connection.conf
            if self._connection.path is not None:
                environment["PATH"] = f"{self._connection.path}:{environment.get('PATH', '')}"
        # Its output is parsed: in no other language, and times in UTC.
        return {**environment, "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard", _WHOLE_LISTS: "0"}
