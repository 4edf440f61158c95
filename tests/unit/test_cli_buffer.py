"""`backstop buffer` on the ledger's history, and what it writes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cli.main import run
from client.inputs.health_series import read_series
from models.buffers.estimator import WEEK_HOURS, derive_buffer
from models.buffers.health_generator import Recipe, simulate_health
from models.buffers.health_hours import HealthHours
from models.buffers.hourly_health import Series
from models.cluster.derived_buffer import HealthTerms
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.snapshot import Snapshot
from models.errors import Refusal
from models.planning.plan import make_plan
from models.rollout.status_models import ProposalStatus
from tests.unit.cli_fakes import NOON, FakeBackstop, answering, status
from views.health_history_csv import as_csv

WEEKS = 6


def history(terms: HealthTerms | None = None) -> HealthHours:
    """45 nodes of 8 GPUs; a day in the third week is unknown, and 16 GPUs were declared for some hours."""
    made = simulate_health(Recipe(nodes=45, weeks=WEEKS), 5)
    total, worst, mean = (8 * row for row in (made.total, made.worst, made.mean))
    planned = np.zeros(len(total))
    planned[30:40] = 16
    worst[30:40] = np.minimum(worst[30:40], 360 - 16)
    mean[30:40] = worst[30:40]
    for row in (total, worst, mean):
        row[400:424] = np.nan
    kept = HealthHours(cluster="h100-worked", total_gpus=360, gpus_per_node=8, terms=terms)
    return kept.with_series(Series("h100-worked", total, worst, mean, planned, first=490_000))


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
    assert shown[0].startswith(
        "h100-worked: 360 GPUs. Their health is known for 984 hours (6 weeks), and unknown for 24 hours. "
    )
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
    kept = fake.hours.series
    for ours, wanted in ((one.total, kept.total), (one.worst, kept.worst), (one.planned, kept.planned)):
        assert np.array_equal(ours, wanted, equal_nan=True)
    assert np.allclose(one.mean, kept.mean, equal_nan=True, atol=1e-4)
    assert len(one.total) == WEEKS * WEEK_HOURS
    assert run(["buffer", "h100-worked", "--health", str(packed)]) == 0
    assert capsys.readouterr().out.splitlines()[:6] == from_ledger


def test_what_is_exported_to_standard_output_is_alone_there(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buffer", "h100-worked", "--export", "-"]) == 0
    assert capsys.readouterr().out.count("\n") == 1 + WEEKS * WEEK_HOURS - 24


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--health", "h.csv", "--export", "x.csv"], "--export writes the ledger's history"),
        (["--gpus-per-node", "4"], "--gpus-per-node is only for --health"),
        (["--horizon", "1,4"], "--horizon takes one number of weeks here, not 1,4"),
        (["--target", "0.2"], "--target must be from 0.5 to 0.99999, not 0.2"),
        (["--floor", "0.7"], "--floor must be from 0 to 0.5, not 0.7"),
        (["--export", "/nowhere/x.csv"], "--export /nowhere/x.csv: cannot be written"),
        (["--export", "-", "--json"], "--export - and --json both write to standard output: give one of them"),
        (["--png", "-"], "--png takes a file name, not -"),
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
    assert "the ledger has no health history of h100-worked" in capsys.readouterr().err
    fake.refuses = Refusal("cluster 'x' is not in the ledger")
    assert run(["buffer", "x"]) == 3
    assert "cluster 'x' is not in the ledger" in capsys.readouterr().err


def test_a_target_that_has_no_looser_one_is_said_once(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["buffer", "h100-worked", "--target", "0.5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].count("For ") == 1


# --- what is down now ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("healthy", "spare", "promise"),
    [(400, 8, 392), (400, 0, 400), (5, 8, 0), (0, 8, 0), (495, 8, 487), (496, 8, None), (544, 8, None)],
)
def test_never_more_is_promised_than_is_healthy_now_and_not_spare(
    healthy: int, spare: int, promise: int | None, fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    """The history of 26 weeks is calm; only today's sample knows of the failure. The plan's ceiling says the same."""
    down = np.zeros(26 * WEEK_HOURS)
    down[::400] = 40
    total = np.full(len(down), 544.0)
    series = Series("h100-worked", total, total - down, total - down, np.zeros(len(down)), first=490_000)
    terms = HealthTerms()
    kept = HealthHours(cluster="h100-worked", total_gpus=544, gpus_per_node=8, terms=terms, healthy_gpus=healthy)
    fake.hours = kept.model_copy(update={"spare_gpus": spare, "health_at": NOON}).with_series(series)
    by_history = derive_buffer(down, 544, terms, 8)
    assert by_history.promise is not None
    assert by_history.promise == 488
    expected = by_history.promise if promise is None else promise
    found = answer(capsys)
    assert (found["promise"], found["healthy"], found["spare"]) == (expected, healthy, spare)
    snapshot = Snapshot(
        cluster="h100-worked",
        islands=(Island(name="main", total_gpus=544, healthy_gpus=healthy),),
        derived=by_history,
    )
    policy = Policy.model_validate({"buffer": {"health": {}}, "spare_gpus": spare})
    assert make_plan(snapshot, policy).ceiling_gpus == expected
    assert run(["buffer", "h100-worked"]) == 0
    shown = capsys.readouterr().out
    assert f": promise {expected}, keep {544 - expected} GPUs (" in shown
    why = (
        f"history alone would allow a promise of {by_history.promise} GPUs, but at 2026-01-31 12:00:00Z only {healthy} "
    )
    assert (why in shown) == (promise is not None)
    assert f"({544 - expected})" in shown.splitlines()[-1], "the picture's mark too"


def test_of_a_file_what_was_down_in_its_last_known_hour_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, hours = datetime(2026, 1, 1, tzinfo=UTC), 9 * WEEK_HOURS
    rows = ["cluster,time,total_nodes,healthy_nodes_min"]
    rows += [
        f"c,{start + n * timedelta(hours=1):%Y-%m-%dT%H:%MZ},60,{60 if n < hours - 2 else 40}" for n in range(hours)
    ]
    path = tmp_path / "h.csv"
    path.write_text("\n".join(rows))
    assert run(["buffer", "c", "--health", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["unit"], found["healthy"], found["spare"], found["promise"]) == ("nodes", 40, 1, 39)


# --- plan and status --------------------------------------------------------------------------------------

FLEET = """
clusters:
  - name: h100-worked
    islands: [{name: main, total_gpus: 360, healthy_gpus: 352}]
    quotas: [{team: research, gpus: 360}]
"""


def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    assert run(["plan", "--file", str(tmp_path / "fleet.yaml"), "--cluster", "h100-worked", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_file_has_no_history_so_that_the_floor_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = planned(tmp_path, capsys, "--buffer", "health")
    assert shown[0].endswith("at most 306 may be promised (buffer 54, from its health history)")
    assert shown[1] == "Buffer for 99.9% of the hours of 28d: there is no health history, so the floor of 0.15 applies."


@pytest.mark.parametrize(
    ("healthy", "said"),
    [
        (360, "at most 306 may be promised (buffer 0.15 of total)"),
        (314, "at most 306 may be promised (buffer 0.15 of total)"),
        (313, "at most 305 may be promised (8 healthy GPUs stay spare; the buffer alone would allow 306)"),
        (4, "at most 0 may be promised (4 healthy GPUs stay spare; the buffer alone would allow 306)"),
    ],
)
def test_what_bounds_a_promise_is_named(
    healthy: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.FLEET", FLEET.replace("352", str(healthy)))
    assert planned(tmp_path, capsys)[0].endswith(said)


@pytest.mark.parametrize(("healthy", "so"), [(305, "no more are healthy"), (1, "no more is healthy")])
def test_a_promise_that_health_alone_bounds_names_no_spare_gpus(
    healthy: int, so: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.FLEET", FLEET.replace("352", str(healthy)))
    shown = planned(tmp_path, capsys, "--policy", "spare_gpus=0")[0]
    assert shown.endswith(f"at most {healthy} may be promised ({so}; the buffer alone would allow 306)")


@pytest.mark.parametrize("unit", ["nodes", "gpus"])
def test_a_history_beside_the_file_is_gone_by(
    unit: Literal["nodes", "gpus"], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = simulate_health(Recipe(cluster="h100-worked", nodes=45, weeks=10, bursts=0), 2)
    size = 1 if unit == "nodes" else 8
    total, worst, mean = (size * row for row in (made.total, made.worst, made.mean))
    series = Series("h100-worked", total, worst, mean, made.planned, unit=unit)
    (tmp_path / "h.csv").write_text(as_csv(series))
    wanted = derive_buffer(8 * made.down, 360, node=8)
    shown = planned(tmp_path, capsys, "--buffer", "health", "--health", str(tmp_path / "h.csv"))
    assert f"(buffer {wanted.needed}, from its health history)" in shown[0]
    assert shown[1].endswith(f": {wanted.text}.")


def test_a_plan_that_cannot_honestly_be_promised_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wild = "".join(f"h100-worked,{h},45,20\n" for h in range(4 * WEEK_HOURS))
    (tmp_path / "h.csv").write_text("cluster,hour,total_nodes,healthy_nodes_min\n" + wild)
    shown = planned(tmp_path, capsys, "--buffer", "health", "--health", str(tmp_path / "h.csv"))
    assert "already ask for more than the floor of 0.15: 200 GPUs have been down most of the time" in shown[1]
    assert shown[3].startswith("Nothing can be promised. Such a plan cannot be launched")


def test_a_history_that_no_buffer_goes_by_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    assert run(["plan", "--file", str(tmp_path / "fleet.yaml"), "--health", "h.csv"]) == 2
    assert "--health is given, but the buffer does not use it: give --buffer health too" in capsys.readouterr().err


def test_a_history_without_a_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "h100-worked", "--health", "h.csv"]) == 2
    assert (
        "--health is only for --file: without --file, the plan uses the ledger's own health history"
        in capsys.readouterr().err
    )


def test_the_ledger_is_asked_with_the_buffer_that_was_given(fake: FakeBackstop) -> None:
    assert run(["plan", "h100-worked", "--buffer", "health", "--max-tier", "busy"]) == 0
    assert fake.asked == [("snapshot", "h100-worked", {"buffer": {"health": {}}})]


def test_the_ledger_is_asked_for_use_over_the_window_that_was_given(fake: FakeBackstop) -> None:
    assert run(["plan", "h100-worked", "--policy", "usage_window=3d", "--policy", "notice=1d"]) == 0
    assert fake.asked == [("snapshot", "h100-worked", {"usage_window": "3d"})]


def test_status_says_what_the_buffer_stands_on(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    stands = derive_buffer(np.full(14 * WEEK_HOURS, 16.0), 361, node=8)
    proposed = ProposalStatus(
        plan_hash="f00d", at=NOON, healthy_gpus=350, planned_gpus=361, inside=False, values=(), buffer=stands
    )
    fake.statuses = [status(buffer=stands, buffer_at=NOON, proposal=proposed)]
    assert run(["status", "h100-worked"]) == 0
    said = f"{stands.needed} of 361 GPUs: 16 GPUs have been down most of the time"
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count(said) == 2
    assert "last computed 2026-01-31 12:00" in shown
