"""The fleet benchmark runs, in every part, on a few clusters; its figures are not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import main

ROOT = Path(__file__).parents[2]
TINY = (
    *("--quick", "--clusters", "8", "--sizes", "45", "--naive", "45", "--watches", "1,0.5", "--quiet-seconds", "5"),
    *("--poll-seconds", "2", "--edges", "3", "--few", "3"),
)


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/fleet.py", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


def marked(mark: str) -> list[str]:
    """Processes that have this in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: PostgreSQL's user must reach it, and a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="backstop-bench-") as found:
        Path(found).chmod(0o755)
        yield Path(found)


@pytest.mark.nightly
def test_every_part_runs_on_a_few_clusters_and_leaves_nothing_behind(folder: Path) -> None:
    mark, figures = uuid.uuid4().hex, folder / "figures.json"
    done = run(*TINY, "--json", str(figures), BENCH_MARK=mark, TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr[:3000] + done.stderr[-1000:]
    assert marked(mark) == []
    assert list(folder.glob("backstop-*")) == []
    found: dict[str, Any] = json.loads(figures.read_text())

    rolled_out = found["rolled_out"]
    assert rolled_out["clusters"] == sum(rolled_out["waves"].values()) == 8
    assert rolled_out["events"] >= rolled_out["largest"] > 0

    (monitored,) = found["monitored"]
    assert [q["events"] for q in monitored["quiet"]] == [0.0, 0.0]
    assert monitored["safety_events"] == 11
    for reactions in (*monitored["single"].values(), *monitored["at_once"].values()):
        assert len(reactions) == 3
        assert all(0 < r["signalled"] <= r["said"] for r in reactions)

    naive = found["naive"]
    assert len(naive["single"]) == len(naive["at_once"]) == 3
    assert naive["quiet"]["events"] > 1000, "a look every two seconds"
    assert "| 45 clusters | ours, watch every 1 s | naive, every 2 s | naive / ours |" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--only", "everything"], "argument --only: invalid choice: 'everything'"),
        (["--clusters", "3"], "--clusters: at least 8, so that there are two pilots and every wave"),
        (["--clusters", "many"], "argument --clusters: must be a whole number from 1 to 100,000, not 'many'"),
        (["--sizes", "1000,900"], "--sizes: each at least 60 larger than the one before"),
        (["--sizes", "10"], "--sizes and --naive: at least 60 clusters, for those to which something is done"),
        (["--watches", "15,15"], "argument --watches: must be different seconds from 0.1 to 600, not '15,15'"),
        (["--watches", "nan"], "argument --watches: must be different seconds from 0.1 to 600, not 'nan'"),
        (["--json", "/nowhere/figures.json"], "--json: there is no directory /nowhere"),
    ],
)
def test_a_bad_option_is_refused_in_one_sentence(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks/fleet.py", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(sentence)
