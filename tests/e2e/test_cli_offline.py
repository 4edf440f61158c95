"""The console script as a user runs it, where no server is."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "fleet.yaml"
MORE_THAN_A_PIPE_HOLDS = 200_000
BY_DAY = "-1"
"""The bad value that a process is given by day."""
BACKSTOP = Path(sys.executable).with_name("backstop")
pytestmark = pytest.mark.e2e


def nightly(item: pytest.Item) -> bool:
    """Return whether the case is for the night: by day only one bad input of each command gets its own process."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("by") == "process" and params["value"] != BY_DAY


def environment(home: Path, **more: str) -> dict[str, str]:
    """An empty home, and no Temporal anywhere near."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BACKSTOP", "TEMPORAL", "XDG"))}
    return {**kept, "HOME": str(home), "TEMPORAL_ADDRESS": "127.0.0.1:1", **more}


def backstop(home: Path, *arguments: str, given: bytes = b"", **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [BACKSTOP, *arguments],
        cwd=home,
        env=environment(home, **more),
        input=given,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def called(monkeypatch: pytest.MonkeyPatch, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process."""
    for name in [name for name in os.environ if name not in environment(home)]:
        monkeypatch.delenv(name)
    for name, value in environment(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def plan(home: Path, *arguments: str) -> dict[str, Any]:
    done = backstop(home, "plan", "--file", str(EXAMPLE), "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_worked_case_comes_out_exactly(tmp_path: Path) -> None:
    answer = plan(tmp_path, "--cluster", "h100-worked", "--buffer", "0.15")
    expected = {
        "schema": "backstop.plan/1",
        "cluster": "h100-worked",
        "total_gpus": 361,
        "healthy_gpus": 319,
        "assigned_gpus": 345,
        "ceiling_gpus": 306,
        "haircut_gpus": 39,
        "phantom_gpus": 26,
        "to_flex_gpus": 13,
        "short_by_gpus": 0,
        "wave": "busy",
        "backed": True,
        "suffices": "busy",
    }
    assert {key: answer[key] for key in expected} == expected
    (quota,) = answer["quotas"]
    assert (quota["team"], quota["before_gpus"], quota["after_gpus"]) == ("research", 345, 306)
    assert (quota["phantom_gpus"], quota["to_flex_gpus"]) == (26, 13)
    assert [(cut["tier"], cut["gpus"]) for cut in quota["cuts"]] == [("unscheduled", 35), ("busy", 4)]
    assert all(cut["reason"] for cut in quota["cuts"])


def test_the_worked_case_without_touching_jobs(tmp_path: Path) -> None:
    answer = plan(tmp_path, "--cluster", "h100-worked", "--max-tier", "unscheduled")
    expected = {
        "ceiling_gpus": 306,
        "haircut_gpus": 39,
        "phantom_gpus": 26,
        "to_flex_gpus": 9,
        "short_by_gpus": 4,
        "wave": "busy",
        "backed": True,
        "suffices": "busy",
    }
    assert {key: answer[key] for key in expected} == expected
    (quota,) = answer["quotas"]
    assert (quota["before_gpus"], quota["after_gpus"]) == (345, 310)
    assert [(cut["tier"], cut["gpus"]) for cut in quota["cuts"]] == [("unscheduled", 35)]
    said = backstop(tmp_path, "plan", "--file", str(EXAMPLE), "h100-worked", "--max-tier", "unscheduled").stdout
    assert "Short by 4" in said
    assert "The first tier that suffices is busy: --max-tier busy." in said


def test_the_example_has_a_cluster_in_each_wave_in_order(tmp_path: Path) -> None:
    plans = plan(tmp_path)["plans"]
    waves = ["unallocated", "unscheduled", "idle", "busy"]
    assert {p["wave"] for p in plans} == set(waves)
    keys = [
        (waves.index(p["wave"]), -(p["healthy_gpus"] - p["assigned_gpus"]) / p["total_gpus"], p["cluster"])
        for p in plans
    ]
    assert keys == sorted(keys)
    assert all(p["backed"] for p in plans)


def test_the_same_plan_has_the_same_hash(tmp_path: Path) -> None:
    first, second = (plan(tmp_path, "--cluster", "h100-pods") for _ in range(2))
    assert first == second
    assert len(first["hash"]) == 16


def test_a_fleet_may_come_from_standard_input(tmp_path: Path) -> None:
    done = backstop(tmp_path, "plan", "--file", "-", given=EXAMPLE.read_bytes())
    assert done.returncode == 0
    refused = backstop(tmp_path, "plan", "--file", "-", given=b"clusters: 1")
    assert refused.stderr == "backstop: standard input, line 1: clusters must be a list, not 1\n"


CLUSTER = "name: c, islands: [{name: x, total_gpus: 10, healthy_gpus: 8}]"


def quotas(*texts: str) -> str:
    return f"clusters: [{{{CLUSTER}, quotas: [{', '.join(f'{{{text}}}' for text in texts)}]}}]"


@pytest.mark.parametrize(
    ("content", "field", "value"),
    [
        (quotas("team: a, gpus: -1"), "clusters[0].quotas[0].gpus", "-1"),
        (quotas("team: a, gpus: 5, scheduled_gpus: 2, idle_gpus: 3"), "clusters[0].quotas[0].idle_gpus", "3"),
        (quotas().replace("healthy_gpus: 8", "healthy_gpus: 11"), "clusters[0].islands[0].healthy_gpus", "11"),
        (quotas("team: a, gpus: 1, islands: [z]"), "clusters[0].quotas[0].islands", "'z'"),
        (quotas("team: a, gpus: 1", "team: a, gpus: 2"), "clusters[0].quotas[1].team", "'a'"),
        (f"clusters: [{{{CLUSTER}}}, {{{CLUSTER}}}]", "clusters[1].name", "'c'"),
        (quotas("team: a, gpus: 5, protected_blocks: [6]"), "clusters[0].quotas[0].protected_blocks", "6"),
        (quotas("team: a, gpus: 5, minimum_gpus: 6"), "clusters[0].quotas[0].minimum_gpus", "6"),
        (quotas("team: a, gpus: 1, parent: b", "team: b, gpus: 1, parent: a"), "clusters[0].quotas[0]", "a -> b -> a"),
        (quotas("team: a, gpus: .nan"), "clusters[0].quotas[0].gpus", "nan"),
        (quotas("team: a, gpus: 1.5"), "clusters[0].quotas[0].gpus", "1.5"),
        (quotas("team: a, gpus: lots"), "clusters[0].quotas[0].gpus", "'lots'"),
        (quotas("team: a, gpus: 1, gpu: 7"), "clusters[0].quotas[0].gpu", "7"),
    ],
    ids=[
        "negative count",
        "idle above scheduled",
        "healthy above total",
        "unknown island",
        "duplicate team",
        "duplicate cluster",
        "block larger than its quota",
        "floor above the quota",
        "cycle",
        "NaN",
        "fraction",
        "text",
        "unknown field",
    ],
)
@pytest.mark.parametrize("command", [["plan", "--file"], ["fleet", "import"]], ids=["plan", "import"])
@pytest.mark.parametrize("by", ["function", "process"])
def test_bad_input_is_refused_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    command: list[str],
    content: str,
    field: str,
    value: str,
) -> None:
    (tmp_path / "fleet.yaml").write_text(f"# line 1\n{content}\n")
    if by == "process":
        done = backstop(tmp_path, *command, "fleet.yaml")
    else:
        done = called(monkeypatch, tmp_path, *command, "fleet.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"backstop: fleet.yaml, line 2: {field}")
    assert value in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["fleet.yaml"]  # nothing is written


def test_what_needs_a_server_says_so(tmp_path: Path) -> None:
    done = backstop(tmp_path, "status")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("backstop: Temporal does not answer at 127.0.0.1:1: check TEMPORAL_ADDRESS or the profile\n")


def test_tables_in_a_pipe_are_plain_and_whole(tmp_path: Path) -> None:
    long = "team-with-a-name-that-no-terminal-has-room-for-" + "x" * 120
    islands = "[{name: x, total_gpus: 9999999, healthy_gpus: 9999999}]"
    fleet = f"clusters: [{{name: {long}, islands: {islands}, quotas: [{{team: {long}, gpus: 9999999}}]}}]"
    (tmp_path / "fleet.yaml").write_text(fleet)
    for arguments in (["--file", "fleet.yaml"], ["--file", "fleet.yaml", "--cluster", long]):
        done = backstop(tmp_path, "plan", *arguments, COLUMNS="40", FORCE_COLOR="", TERM="xterm-256color")
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        assert "…" not in done.stdout
        (row,) = [text for text in done.stdout.splitlines() if text.startswith(f"{long} ")]
        assert "9999999" in row
        assert all(text == text.rstrip() for text in done.stdout.splitlines())


def test_names_that_the_output_cannot_encode_are_spelt_out(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(quotas("team: équipe, gpus: 1"))
    done = backstop(tmp_path, "plan", "--file", "fleet.yaml", "c", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "\\xe9quipe" in done.stdout


def test_a_reader_that_has_left_ends_it_quietly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [BACKSTOP, "plan", "--file", str(EXAMPLE)],
            env=environment(tmp_path),
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C means something to children: where the tests were started in the background, they would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
def test_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [BACKSTOP, "plan", "--file", "-"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(b"#" * MORE_THAN_A_PIPE_HOLDS)  # once it is written the command reads, and waits for more
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")


def test_backstop_alone_shows_its_commands(tmp_path: Path) -> None:
    done = backstop(tmp_path)
    assert done.returncode == 2
    assert "launch" in done.stdout + done.stderr
    assert backstop(tmp_path, "--version").stdout.startswith("backstop ")
