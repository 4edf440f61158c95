"""`backstop buffer` on the ledger's history, and what it writes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from cli.main import run
from client.series import read_series
from models.derived import HealthTerms
from models.errors import Refusal
from models.generator import Recipe, simulated
from models.history import HealthHours, Hourly
from models.promises import WEEK
from tests.unit.cli_fakes import FakeBackstop, answering

WEEKS = 6


def history(terms: HealthTerms | None = None) -> HealthHours:
    """45 nodes of 8 GPUs; a day in the third week is unknown, and 16 GPUs were declared for some hours."""
    made = simulated(Recipe(nodes=45, weeks=WEEKS), 5)
    total, worst, mean = (8 * row for row in (made.total, made.worst, made.mean))
    planned = np.zeros(len(total))
    planned[30:40] = 16
    worst[30:40] = np.minimum(worst[30:40], 360 - 16)
    mean[30:40] = worst[30:40]
    for row in (total, worst, mean):
        row[400:424] = np.nan
    kept = HealthHours(cluster="h100-worked", total_gpus=360, gpus_per_node=8, terms=terms)
    return kept.holding(Hourly(490_000, total, worst, mean, planned))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBackstop]:
    monkeypatch.setenv("BACKSTOP_ACTOR", "tpm")
    with answering(FakeBackstop(hours=history())) as door:
        yield door


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run(["buffer", "h100-worked", *arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_without_a_file_the_ledger_is_asked(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["buffer", "h100-worked"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert fake.asked == [("health_hours", "h100-worked")]
    assert shown[0].startswith("h100-worked: 360 GPUs; 984 hours (6 weeks) of its health are known and 24 are not; ")
    assert shown[1].startswith("For 99.9% of the hours of the next 4 weeks: promise ")


def test_the_clusters_policy_says_what_is_asked_and_options_say_more(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.hours = history(HealthTerms(target=Fraction(98, 100), horizon=timedelta(weeks=2), floor=Fraction(1, 10)))
    by_policy = answer(capsys)
    assert (by_policy["target"], by_policy["horizon_weeks"]) == ("0.98", 2)
    asked = answer(capsys, "--target", "0.999", "--horizon", "1")
    assert (asked["target"], asked["horizon_weeks"]) == ("0.999", 1)


def test_what_is_exported_is_read_back_as_it_was(
    fake: FakeBackstop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, packed = tmp_path / "h.csv", tmp_path / "h.csv.gz"
    for path in (plain, packed):
        assert run(["buffer", "h100-worked", "--export", str(path)]) == 0
    from_ledger = capsys.readouterr().out.splitlines()[:6]
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    (one,) = read_series(packed)
    kept = fake.hours.hours
    for ours, wanted in ((one.total, kept.total), (one.worst, kept.worst), (one.absent, kept.planned)):
        assert np.array_equal(ours, wanted, equal_nan=True)
    assert np.allclose(one.mean, kept.mean, equal_nan=True, atol=1e-4)
    assert len(one.total) == WEEKS * WEEK
    assert run(["buffer", "h100-worked", "--health", str(packed)]) == 0
    assert capsys.readouterr().out.splitlines()[:6] == from_ledger


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--health", "h.csv", "--export", "x.csv"], "--export writes the ledger's history"),
        (["--gpus-per-node", "4"], "--gpus-per-node is for --health"),
        (["--horizon", "1,4"], "--horizon takes one number of weeks here, not 1,4"),
        (["--target", "0.2"], "--target must be from 0.5 to 0.99999, not 0.2"),
        (["--floor", "0.7"], "--floor must be from 0 to 0.5, not 0.7"),
        (["--export", "/nowhere/x.csv"], "--export /nowhere/x.csv: cannot be written"),
    ],
)
def test_a_bad_option_is_one_sentence(
    fake: FakeBackstop, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buffer", "h100-worked", *arguments]) == 2
    caught = capsys.readouterr()
    assert (said in caught.err, caught.err.count("\n"), caught.out) == (True, 1, "")


def test_a_cluster_without_history_or_unknown_is_said_so(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.hours = HealthHours(cluster="h100-worked", total_gpus=361, gpus_per_node=8)
    assert run(["buffer", "h100-worked"]) == 2
    assert "the ledger knows no hour of the health of h100-worked" in capsys.readouterr().err
    fake.refuses = Refusal("cluster 'x' is not in the ledger")
    assert run(["buffer", "x"]) == 3
    assert "cluster 'x' is not in the ledger" in capsys.readouterr().err


def test_a_target_that_has_no_looser_one_is_said_once(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["buffer", "h100-worked", "--target", "0.5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].count("For ") == 1
