"""A stage for stories: a real `backstop up` in a folder of its own, real commands, and a narrator.

The demo and examples/real.py tell their stories with it. Nothing is simulated: the commands are those of the README,
the server is Temporal, the ledger is the ledger; only the clocks are compressed by the policy.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from backstop.program import program
from client.backstop import Backstop
from models.buffers.hourly_health import Series
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.errors import Unavailable
from models.rollout.status_models import RolloutStatus
from models.texts import some_of
from workers.up import PASSING

_POLL_SECONDS = 0.15
_ELSEWHERE = ("BACKSTOP_ACTOR", "BACKSTOP_URL", "BACKSTOP_SOCKET")
"""Variables that would direct a command to another front than the story's own."""
_START_SECONDS = 60


def say(text: str = "") -> None:
    """Print a line of the narrator's."""
    print(text, flush=True)


@dataclass
class Story:
    """A running Backstop and the person in front of it."""

    home: Path
    backstop: Backstop
    actor: str
    began: float = field(default_factory=time.monotonic)
    _last: str = ""

    def run(self, *words: str, show: bool = True) -> str:
        """Run a command as a person types it, and show its output. Errors: Unavailable when it fails."""
        if show:
            say(f"\n$ backstop {shlex.join(words)}")
        environment = {**os.environ, "BACKSTOP_HOME": str(self.home)}
        for name in _ELSEWHERE:
            environment.pop(name, None)
        command = [*program("cli.main"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if show:
            say(done.stdout.rstrip())
        if done.returncode != 0:
            raise Unavailable(f"backstop {words[0]} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    async def healthy(self, cluster: str, island: str, total: int, healthy: int) -> None:
        """Report health as a health source does."""
        sample = HealthSample(
            cluster=cluster,
            at=datetime.now(UTC),
            islands=(Island(name=island, total_gpus=total, healthy_gpus=healthy),),
        )
        await self.backstop.add_health([sample])

    async def live_hours(self, cluster: str, island: str, series: Series, gpus_per_node: int) -> None:
        """Report each of these hours, up to the present one. Units: the series' are nodes."""
        total, worst = (gpus_per_node * row for row in (series.total, series.worst))
        first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=len(total))
        await self.backstop.add_health(
            [
                HealthSample(
                    cluster=cluster,
                    at=first + timedelta(hours=hour),
                    islands=(Island(name=island, total_gpus=int(total[hour]), healthy_gpus=int(worst[hour])),),
                )
                for hour in range(len(total))
            ]
        )

    async def until(
        self, cluster: str, reached: Callable[[RolloutStatus], bool], seconds: float, what: str
    ) -> RolloutStatus:
        """Narrate the rollout's changes until it is there. Errors: Unavailable when it takes too long."""
        ends = time.monotonic() + seconds
        while True:
            status = await self.backstop.status(cluster)
            self.narrate(status)
            if reached(status):
                return status
            if time.monotonic() > ends:
                raise Unavailable(f"{cluster} was not {what} within {seconds:g} s; it is {status.stage}")
            await asyncio.sleep(_POLL_SECONDS)

    def narrate(self, status: RolloutStatus) -> None:
        """Print a line if the rollout has visibly changed."""
        quotas = ", ".join(f"{team.team} {team.quota_gpus}" for team in status.teams if team.leaf)
        if len(quotas) > 60:
            quotas = f"{sum(t.quota_gpus for t in status.teams if t.leaf)} GPUs of quota"
        at_risk = [f"{risk.team} has {risk.backing_gpus} healthy of {risk.quota_gpus}" for risk in status.at_risk]
        risk = f"; AT RISK: {some_of(at_risk, 3)}" if at_risk else ""
        line = f"{status.stage:<12} {quotas}{risk}"
        if line != self._last:
            self._last = line
            say(f"[{time.monotonic() - self.began:6.1f} s] {line}")


@asynccontextmanager
async def on_stage(actor: str) -> AsyncIterator[Story]:
    """Start a fresh Backstop in a temporary folder; everything it started is stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="backstop-") as folder:
        home = Path(folder)
        os.environ["BACKSTOP_HOME"] = folder
        os.environ.pop("TEMPORAL_ADDRESS", None)
        environment = {**os.environ, "BACKSTOP_PORT": "0", "BACKSTOP_UI_PORT": "0", "BACKSTOP_WATCH_INTERVAL": "0.1"}
        for name in ("BACKSTOP_LEDGER_URL", "BACKSTOP_SOCKET"):
            environment.pop(name, None)
        log = (home / "up.log").open("wb")
        process = _start(environment, log)
        try:
            await _wait_until_announced(home, process)
            yield Story(home, await Backstop.connect(actor), actor)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            log.close()


def _start(environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `backstop up` in a session of its own: a Ctrl-C in the terminal reaches us, and we stop it.

    If we are killed its standard input ends: then it stops all that it started, and removes the folder.
    """
    command = [*program("workers.up"), PASSING]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
    )


async def _wait_until_announced(home: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server has announced its address and a worker answers."""
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        if "ready" in (home / "up.log").read_text(errors="replace"):
            server = json.loads((home / "temporal.json").read_text())
            say(f"Temporal at {server['address']}, its UI at {server['ui']}, all state in a temporary folder")
            return
        await asyncio.sleep(0.1)
    raise Unavailable(f"backstop up did not start:\n{(home / 'up.log').read_text(errors='replace')[-2000:]}")
