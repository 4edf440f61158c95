"""The second day with forty clusters, by the commands that a TPM gives: `python -m tests.e2e.day_two`.

What is typed and printed is the transcript that docs/day-two.md shows; times, hashes and addresses in it are replaced.
What is asserted is read from the ledger by plain SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from client.connection import NAMESPACE
from tests.e2e.terminal import ASKS, Terminal
from tests.integration.notice_servers import web_server

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
TABLES = ("clusters.csv", "quotas.csv", "teams.csv")
NAMES = [f"h100-{n:02d}" for n in range(1, 41)]
TYPO = "h1O0-07"
"""Instead of h100-07: a letter for a digit."""
OPEN = NAMES[:12]
POLICY = {"notice": "0s", "soak_buffered": "1h", "max_moved_gpus": "10000"}
HEAD = """# The second day

Forty clusters were imported into the ledger (Backstop's database) yesterday, from a spreadsheet in three CSV files:
`clusters.csv`, `quotas.csv`, `teams.csv`. Each has 256 GPUs and quotas for two teams: research 160, evals 90. Twelve
rollouts are open (h100-01 to h100-13, without the seventh). The policy gives no notice (`notice: 0s`; the default is 3
days), so all twelve are `buffered` already: they cut the quotas to 141 and 76. Today somebody edits the spreadsheet.

The output is real; only times, ids and addresses are replaced. Commands that ask were answered at a terminal.
`python -m tests.e2e.day_two --write` makes this page, and a test checks it.
"""

AFTER = """
h100-09 has 237 healthy GPUs and its quotas were 250, so 13 had no healthy GPU behind them. The digest and the table of
the abort answer two questions about these 13, each by its rule in [design.md](design.md):

- The digest says how many GPUs of each cut they were: in proportion to the cuts (19 and 14), 7 and 6.
- The table says what each team will lack once its quota is back: in proportion to the quotas (160 and 90), 8 and 5.
"""


class Day:
    """`say` gets each line of the transcript as it is written."""

    def __init__(self, home: Path, say: Callable[[str], object]) -> None:
        self.home, self.lines, self._say = home, list[str](), say
        self.digest_at = datetime.now(UTC)
        self.address = ""

    # --- telling --------------------------------------------------------------------------------

    def tell(self, *lines: str) -> None:
        for line in lines:
            told = re.sub(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?Z?", "2026-11-22 09:00:00Z", line)
            told = re.sub(r"\b\d{8}T\d{6}Z-[0-9a-f]{6}", "20261122T090000Z-0a1b2c", told)
            told = re.sub(r"\b[0-9a-f]{16}\b", "0123456789abcdef", told)
            told = re.sub(r"\b([A-Z][a-z]+day )?\d{1,2} [A-Z][a-z]+ 20\d\d(, \d\d:\d\d UTC)?", "22 November 2026", told)
            told = re.sub(r"127\.0\.0\.1:\d+", "chat.example", told).rstrip()
            self.lines.append(told)
            self._say(told)

    def title(self, text: str, *prose: str) -> None:
        self.tell("", f"## {text}", "", *(line for part in prose for line in (part, "")))

    def backstop(self, words: str, *, code: int = 0, show: bool = True) -> str:
        """Run a command; return what it printed. Errors: AssertionError for another exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *shlex.split(words)],
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, f"{words} ended with {done.returncode}: {done.stdout}"
        if show:
            self.tell(
                "```console", f"$ backstop {words}", *done.stdout.splitlines(), *[f"$ echo $?\n{code}"] * bool(code)
            )
            self.tell("```")
        return done.stdout

    def asked(self, words: str, answer: str, *, code: int) -> str:
        """The same at a terminal, where it asks."""

        async def typed() -> str:
            terminal = Terminal(tuple(shlex.split(words)), self.environment, self.home)
            await terminal.until(f"{ASKS}: ")
            terminal.types(answer)
            assert await terminal.ended() == code, terminal.shown
            return terminal.shown

        shown = asyncio.run(typed())
        self.tell("```console", f"$ backstop {words}", *shown.splitlines(), "```")
        return shown

    # --- the world ------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        # Where LINES is given beside COLUMNS a dumb terminal is as wide as they say, else 80: a test may have set it.
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("BACKSTOP", "TEMPORAL", "LINES"))}
        return keep | {
            "BACKSTOP_HOME": str(self.home / "state"),
            "BACKSTOP_ACTOR": "tpm",
            "BACKSTOP_DIGEST_AT": f"{self.digest_at:%H:%M}",
            "BACKSTOP_CONTACT_NETWORKS": "127.0.0.0/8",
            "BACKSTOP_WATCH_INTERVAL": "1",
            "TEMPORAL_ADDRESS": self.address,
            "TEMPORAL_NAMESPACE": NAMESPACE,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            "TERM": "dumb",
        }

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        log = self.home / "up.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", "up", "--port", "0", "--ui-port", "0"],
                env={k: v for k, v in self.environment.items() if not k.startswith("TEMPORAL")},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            try:
                ends = time.monotonic() + PATIENCE
                while "worker" not in log.read_text():
                    dead = process.poll() is not None or time.monotonic() > ends
                    assert not dead, log.read_text()
                    time.sleep(0.2)
                found = re.search(r"127\.0\.0\.1:\d+", log.read_text())
                assert found is not None
                self.address = found.group()
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.home}/state/ledger.db?mode=ro", uri=True)) as ledger:
            return ledger.execute(query, parameters).fetchall()

    def until(self, query: str, value: Any, *parameters: Any) -> None:
        ends = time.monotonic() + PATIENCE
        while self.sql(query, *parameters) != [(value,)]:
            assert time.monotonic() < ends, (query, value, self.backstop("status", show=False))
            time.sleep(0.5)

    def quotas(self) -> dict[tuple[str, str], int]:
        return {(c, t): g for c, t, g in self.sql("SELECT cluster, team, gpus FROM quotas")}

    # --- the spreadsheet ------------------------------------------------------------------------

    def sheet(self, name: str, rows: list[dict[str, Any]]) -> None:
        out = io.StringIO()
        writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        (self.home / name).write_text(out.getvalue())

    def header(self, name: str) -> str:
        return (self.home / name).read_text().partition("\n")[0]

    def edited(self, name: str, old: str, new: str) -> None:
        """One row of a table is another one, as a difference shows it."""
        text = (self.home / name).read_text()
        assert text.count(f"{old}\n") == (1 if old else 0) or not old
        text = text.replace(f"{old}\n", f"{new}\n" if new else "") if old else f"{text}{new}\n"
        (self.home / name).write_text(text)
        self.tell(*([f"-{old}"] if old else []), *([f"+{new}"] if new else []))


def yesterday(day: Day, webhook: str) -> None:
    """Forty clusters, one of them misspelt; twelve rollouts are approved and buffered."""
    names = [TYPO if name == "h100-07" else name for name in NAMES]
    setting = {f"policy.{key}": value for key, value in POLICY.items()}
    clusters: list[dict[str, Any]] = [
        {
            "cluster": n,
            "gpu_model": "H100",
            "total_gpus": 256,
            "healthy_gpus": 240 - k % 5,
            "gpus_per_node": 8,
            **setting,
        }
        for k, n in enumerate(names)
    ]
    quotas: list[dict[str, Any]] = [
        {"cluster": n, "team": team, "gpus": gpus, "scheduled_gpus": used, "idle_gpus": 4}
        for n in names
        for team, gpus, used in (("research", 160, 120), ("evals", 90, 60))
    ]
    teams: list[dict[str, Any]] = [
        {"team": "research", "contacts": webhook, "notify": "digest"},
        {"team": "evals", "contacts": "log", "notify": ""},
    ]
    for name, rows in zip(TABLES, (clusters, quotas, teams), strict=True):
        day.sheet(name, rows)
    day.backstop(f"fleet import {' '.join(TABLES)}", show=False)
    opened = [name for name in OPEN if name != "h100-07"] + [NAMES[12]]
    for name in opened:
        day.backstop(f"launch {name}", show=False)
    # In one command: a plan with a notice of 0s is sent at once, and takes along what waits for the hour of digests.
    day.backstop(f"approve {' '.join(opened)} --yes", show=False)
    day.until("SELECT count(*) FROM rollouts WHERE stage = 'buffered'", 12)
    day.until("SELECT count(DISTINCT cluster) FROM tallies", 40)  # within a minute: what goes with a cluster is counted


def tell(day: Day) -> None:
    """Play the day. Errors: AssertionError if something is not as the page says."""
    before = day.quotas()
    assert day.sql("SELECT count(*) FROM clusters") == [(40,)]

    day.title(
        "The spreadsheet is edited",
        "In `quotas.csv` two quotas change (h100-02 has an open rollout, h100-30 has none) and one is deleted. A new\n"
        "cluster, h100-41, is added with two typing errors, `9O` and `-5`:",
    )
    day.tell("```diff", "--- quotas.csv", f" {day.header('quotas.csv')}")
    day.edited("quotas.csv", "h100-30,research,160,120,4", "h100-30,research,176,120,4")
    day.edited("quotas.csv", "h100-02,research,160,120,4", "h100-02,research,170,120,4")
    day.edited("quotas.csv", "h100-33,evals,90,60,4", "")
    day.edited("quotas.csv", "", "h100-41,research,-5,0,0")
    day.tell("--- clusters.csv", f" {day.header('clusters.csv')}")
    day.edited("clusters.csv", "", "h100-41,H100,256,9O,8,0s,1h,10000")
    day.tell("```")

    day.title("Backstop names the bad lines and changes nothing")
    told = day.backstop(f"fleet diff {' '.join(TABLES)}", code=2)
    assert "clusters.csv, line 42: healthy_gpus must be" in told
    assert "quotas.csv, line 81: gpus must be" in told
    day.tell("", "The two lines are mended:", "", "```diff")
    day.edited("clusters.csv", "h100-41,H100,256,9O,8,0s,1h,10000", "h100-41,H100,256,240,8,0s,1h,10000")
    day.edited("quotas.csv", "h100-41,research,-5,0,0", "h100-41,research,160,0,0")
    day.tell("```")

    day.title(
        "What an import would do",
        "`+` is added, `~` changed, `=` kept, `!` refused. If the file still has the value that a rollout replaced\n"
        "(160), the rollout's value stays (`=`). Any other value for a quota under an open rollout is refused (`!`).",
    )
    day.backstop(f"fleet diff {' '.join(TABLES)}")
    assert day.quotas() == before

    day.title(
        "The import, while twelve rollouts are open",
        "Backstop imports the clusters without a refused line: 40 of 41. Exit code 3 means that a line was refused;\n"
        "with `--whole`, nothing would be imported then.",
    )
    day.backstop(f"fleet import {' '.join(TABLES)}", code=3)
    changed = {key: gpus for key, gpus in day.quotas().items() if before.get(key) != gpus}
    assert changed == {("h100-30", "research"): 176, ("h100-41", "research"): 160}
    assert ("h100-33", "evals") in day.quotas(), "an import removes nothing"

    day.title(
        "A name that was misspelt yesterday",
        "The fleet has `h1O0-07`, with a letter O for the zero. (A tally is one of the sums that "
        "`backstop burndown` shows.)",
    )
    day.asked(f"fleet rename {TYPO} h100-07", "y", code=0)
    assert day.sql("SELECT name FROM clusters WHERE name IN ('h100-07', ?)", TYPO) == [("h100-07",)]

    day.title("A cluster that was imported by mistake")
    day.asked("fleet remove h100-40", "y", code=0)
    assert day.sql("SELECT count(*) FROM clusters WHERE name = 'h100-40'") == [(0,)]

    day.title("An abort that asks", "The answer to the first question is no, to the second yes.")
    day.asked("abort 'h100-0*' --reason 'next quarter'", "n", code=1)
    assert day.sql("SELECT count(*) FROM rollouts WHERE stage = 'buffered'") == [(12,)]
    day.asked("abort h100-01 h100-02 --reason 'next quarter'", "y", code=0)
    day.until("SELECT count(*) FROM rollouts WHERE stage = 'aborted'", 2)
    for name in ("h100-01", "h100-02"):
        assert {team: day.quotas()[name, team] for team in ("research", "evals")} == {"research": 160, "evals": 90}

    day.title("The rollouts that are left")
    day.backstop("status --stage buffered --sort cluster -o wide")

    day.title(
        "One digest a day",
        "Team research asked for digests (`notify: digest` in `teams.csv`). Backstop notified it at once of each\n"
        "plan that was approved and of the two rollbacks. Other news came in one message, at the hour of digests:",
    )


def in_order(message: str) -> list[str]:
    """Its lines, a digest's news by cluster and without their hours: what comes first is a matter of the machine."""
    if "\nWhat happened (" not in message:
        return message.splitlines()  # one notice alone, in its own form
    text = re.sub(r"(?m)^- \d{1,2} [A-Z][a-z]+, \d\d:\d\d UTC: ", "- ", message)
    news = re.findall(r"(?m)^- .*(?:\n    .*)*", text)
    head, tail = (text.partition(news[0])[0], text.rpartition(news[-1])[2]) if news else (text, "")
    return [*head.splitlines(), *(line for each in sorted(news) for line in each.splitlines()), *tail.splitlines()]


def digest(day: Day, said: Callable[[], list[dict[str, Any]]]) -> None:
    """The hour has come. Errors: AssertionError where something is not so."""

    def kinds(message: dict[str, Any]) -> set[str]:
        return {n["kind"] for n in message["notice"]["facts"].get("notices", [message["notice"]])}

    ends = time.monotonic() + 2 * PATIENCE
    while not (daily := [m for m in said() if kinds(m) == {"buffered"}]):
        assert time.monotonic() < ends, [kinds(m) for m in said()]
        time.sleep(1)
    lines = in_order(max((str(m["message"]) for m in daily), key=len))
    shown = "\n".join(lines[:16]).rstrip().splitlines()
    day.tell("```text", *shown, *["..."] * (len(lines) > 16), "```", *AFTER.splitlines())
    twelve = {name for (name,) in day.sql("SELECT cluster FROM rollouts")}
    # What can wait goes along with what goes at once: where the approvals took many seconds, less is left for the hour.
    every = [n for m in said() for n in m["notice"]["facts"].get("notices", [m["notice"]])]
    told_of = {n["cluster"] for n in every if n["kind"] == "buffered"}
    assert twelve - {"h100-01", "h100-02"} <= told_of <= twelve, told_of
    assert len(said()) <= 8, [kinds(m) for m in said()]
    undone = [m for m in said() if "rolled_back" in kinds(m)]
    assert {n["cluster"] for m in undone for n in m["notice"]["facts"].get("notices", [m["notice"]])} == {
        "h100-01",
        "h100-02",
    }


@contextlib.contextmanager
def lived(home: Path, say: Callable[[str], object]) -> Iterator[Day]:
    """The day, told."""
    with web_server() as web:
        day = Day(home, say)

        def said() -> list[dict[str, Any]]:
            return [request.json for request in web.requests]

        day.digest_at = datetime.now(UTC) + timedelta(hours=12)
        with day.up():
            yesterday(day, f"webhook+http://127.0.0.1:{web.port}/")
            tell(day)
        # Whatever the machine took for all that: the worker is started again, and the hour is at hand.
        day.digest_at = datetime.now(UTC) + timedelta(minutes=2)
        with day.up():
            digest(day, said)
            yield day


def page(day: Day) -> str:
    return HEAD + "\n".join(day.lines) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="backstop-day-") as home, lived(Path(home), print) as day:
        if "--write" in sys.argv:
            (ROOT / "docs" / "day-two.md").write_text(page(day))


if __name__ == "__main__":
    main()
