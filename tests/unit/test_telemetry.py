"""A collector that is away costs a command nothing, and a worker one line."""

from __future__ import annotations

import enum
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.telemetry import _Outage, run_within
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


class Result(enum.Enum):
    SUCCESS = 0
    FAILURE = 1


@pytest.fixture(params=["nobody listens", "it never answers"])
def collector(request: pytest.FixtureRequest) -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if request.param == "it never answers":
            listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_command_says_nothing_of_a_collector_that_is_away(collector: str, tmp_path: Path) -> None:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "OTEL_", "BACKSTOP_"))}
    nowhere = {"TEMPORAL_ADDRESS": "127.0.0.1:1", "BACKSTOP_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "audit", "x"],
        env={**inherited, **nowhere, "OTEL_EXPORTER_OTLP_ENDPOINT": collector},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = "backstop: Temporal does not answer at 127.0.0.1:1: check TEMPORAL_ADDRESS or the profile\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_a_flush_that_does_not_end_is_left_behind() -> None:
    answered = threading.Event()
    ended = threading.Event()

    def flush() -> None:
        answered.wait(PATIENCE)
        ended.set()

    run_within(0.01, flush)
    assert not ended.is_set()
    answered.set()
    assert ended.wait(PATIENCE)


def test_an_outage_is_told_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    outage = _Outage("http://collector:4317")
    with caplog.at_level(logging.WARNING):
        for name in ("SUCCESS", "FAILURE", "FAILURE", "SUCCESS", "SUCCESS", "FAILURE"):
            assert outage.note_result(Result[name]) is Result[name]
    dropped = "the OTLP collector at http://collector:4317 accepts no data: traces and metrics are dropped"
    again = "the OTLP collector at http://collector:4317 accepts traces and metrics again"
    assert [record.getMessage() for record in caplog.records] == [dropped, again, dropped]
