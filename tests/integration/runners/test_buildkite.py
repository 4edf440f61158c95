"""Builds through Buildkite's REST API: what its documentation says of it is what the server here does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from activities.adapters.http import Answered, Asked
from activities.adapters.runners import buildkite, http_requests
from activities.adapters.runners.buildkite import PHASES, BuildkiteRunner
from activities.adapters.runners.settings import Allowed, RunnerSettings
from models.bringup.runs import RunKey, RunOrder, RunPhase, RunReport
from models.errors import BadInput, Unavailable
from tests.integration.runners.servers import TOKEN, Buildkite, Trouble, now, serving
from tests.waiting import PATIENCE

BUILDS = "/v2/organizations/acme/pipelines/bootstrap/builds"


@pytest.fixture
def site() -> Iterator[Buildkite]:
    site = Buildkite()
    with serving(site):
        yield site


class Clock:
    """Stands still unless a test turns it."""

    def __init__(self) -> None:
        self.seconds = 0.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock that tells the runner how old a list is, and how long to leave Buildkite alone."""
    clock = Clock()
    monkeypatch.setattr(buildkite, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    return clock


def runner(site: Buildkite, token: str = TOKEN) -> BuildkiteRunner:
    access = {"organization": "acme", "pipelines": ["bootstrap", "gone"], "url": f"{site.url}/v2", "token": "BK"}
    allowed = Allowed(RunnerSettings.model_validate({"buildkite": access}), {"BK": token})
    return BuildkiteRunner(allowed, pause=lambda _: None)


def order(step: str = "bootstrap", cluster: str = "h100 new/1", **fields: object) -> RunOrder:
    key = RunKey(cluster=cluster, attempt=1, step=step)
    given = {"pipeline": "bootstrap", "limit": timedelta(hours=3), "values": {"NODES": "44"}, **fields}
    return RunOrder.model_validate({"key": key, "runner": "buildkite", **given})


def looked(site: Buildkite, what: RunOrder) -> RunReport:
    report = runner(site).look(what)
    assert report is not None
    return report


def test_a_build_is_made_with_the_key_and_the_values(site: Buildkite) -> None:
    report = runner(site).start(order(branch="release", commit="abc123"))
    (build,) = site.builds["bootstrap"]
    assert (build["branch"], build["commit"]) == ("release", "abc123")
    assert build["env"] == {"NODES": "44", "BACKSTOP_RUN": "h100 new/1/1/bootstrap"}
    assert build["meta_data"] == {"NODES": "44", "backstop-run": "h100 new/1/1/bootstrap"}
    assert build["message"] == "bootstrap of h100 new/1 (Backstop, attempt 1)"
    assert report.link == "https://buildkite.com/acme/bootstrap/builds/1"
    assert report.said == "build 1 of bootstrap is scheduled"
    assert TOKEN not in report.model_dump_json()


@pytest.mark.parametrize("state", [*PHASES, "invented", "Passed", ""])
def test_each_state_has_an_answer_and_an_unknown_one_ends_nothing(site: Buildkite, state: str) -> None:
    documented = {
        "passed": RunPhase.SUCCEEDED,
        "failed": RunPhase.FAILED,
        "skipped": RunPhase.FAILED,
        "not_run": RunPhase.FAILED,
        "waiting_failed": RunPhase.FAILED,
        "canceled": RunPhase.STOPPED,
    }
    runner(site).start(order())
    site.move("bootstrap", 1, state=state)
    report = looked(site, order())
    assert report.phase is documented.get(state, RunPhase.RUNNING)
    assert "build 1 of bootstrap" in report.said


@pytest.mark.parametrize("state", ["passed", "failed", "running"])
def test_a_build_that_is_blocked_has_not_ended_whatever_its_state(site: Buildkite, state: str) -> None:
    runner(site).start(order())
    site.move("bootstrap", 1, state=state, blocked=True)
    report = looked(site, order())
    assert report.phase is RunPhase.RUNNING
    assert report.said == "build 1 of bootstrap waits at a block step, for a person who unblocks it in Buildkite"


def test_one_that_failed_says_its_job_its_status_and_the_end_of_its_log(site: Buildkite) -> None:
    runner(site).start(order())
    job = {"id": "b63254c0", "type": "script", "state": "failed", "exit_status": 7, "soft_failed": False}
    soft = {**job, "id": "soft", "exit_status": 1, "soft_failed": True}
    site.logs["b63254c0"] = "\x1b[90m$ terraform apply\x1b[0m\r\n" + "x\r\n" * 2000 + "\x1b_bk;t=1\x07Error: quota\n"
    site.move("bootstrap", 1, state="failed", jobs=[{"type": "waiter"}, soft, job])
    report = looked(site, order())
    assert (report.phase, report.code) == (RunPhase.FAILED, 7)
    assert report.tail.endswith("x\nError: quota")
    site.logs.clear()  # it may be deleted, or the token may not read it
    assert looked(site, order()).phase is RunPhase.FAILED


def test_the_builds_of_a_key_are_found_on_every_page(site: Buildkite) -> None:
    site.per_page, site.heeds_filter = 3, False
    wanted = runner(site)
    wanted.start(order())
    for number in range(10):
        wanted.start(order(cluster=f"other-{number}"))
    site.asked.clear()
    report = wanted.start(order())
    assert report.link.endswith("/builds/1")
    assert len(site.asked) == 4
    assert looked(site, order()).link.endswith("/builds/1")


def test_three_hundred_runs_are_followed_by_a_few_requests(site: Buildkite) -> None:
    worker, orders = runner(site), [order(cluster=f"h100-{number}") for number in range(300)]
    site.builds["bootstrap"] = []
    for what in orders:
        site.created("bootstrap", {"commit": "HEAD", "branch": "main", "meta_data": {"backstop-run": what.key.text}})
    site.created("bootstrap", {"commit": "HEAD", "branch": "main", "meta_data": None})  # not ours, and senseless
    site.per_page = 100
    site.move("bootstrap", 7, state="passed")
    found = [worker.look(what) for what in orders]
    assert len(site.asked) == 4  # three pages of those under way, and the one that has ended by its key
    phases = [report.phase for report in found if report is not None]
    assert phases == [RunPhase.SUCCEEDED if number == 6 else RunPhase.RUNNING for number in range(300)]


def test_when_the_list_cannot_be_had_it_is_not_asked_for_by_every_run(site: Buildkite) -> None:
    worker = runner(site)
    site.troubles.append(Trouble("GET", 502, 99))
    for number in range(20):
        with pytest.raises(Unavailable, match="HTTP 502"):
            worker.look(order(cluster=f"h100-{number}"))
    assert len(site.asked) == 1


def test_a_list_that_goes_on_elsewhere_is_not_followed(site: Buildkite) -> None:
    elsewhere = Buildkite()
    with serving(elsewhere):
        site.troubles.append(
            Trouble(f"GET {BUILDS}", 200, 1, {"Link": f'<{elsewhere.url}{BUILDS}?page=2>; rel="next"'})
        )
        with pytest.raises(Unavailable):
            runner(site).look(order())
    assert elsewhere.asked == []


def test_the_same_name_in_another_cluster_or_attempt_is_not_ours(site: Buildkite) -> None:
    site.heeds_filter = False
    runner(site).start(order(cluster="a"))
    assert runner(site).look(order(cluster="b")) is None
    assert runner(site).look(order("boot", cluster="a")) is None


@pytest.mark.parametrize("kind", [500, 502, 503, "lost"])
def test_a_build_whose_making_was_not_answered_is_made_once(site: Buildkite, kind: int | str) -> None:
    site.troubles.append(Trouble(f"POST {BUILDS}", kind))
    what, worker = order(), runner(site)
    if kind != "lost":
        with pytest.raises(Unavailable, match=f"HTTP {kind}.*Buildkite shows no build for this run yet"):
            worker.start(what)
        assert site.of(what.key.text) == []
    assert worker.start(what).phase is RunPhase.RUNNING
    assert len(site.of(what.key.text)) == 1


def test_a_build_that_is_not_seen_at_once_is_waited_for(site: Buildkite) -> None:
    site.troubles.append(Trouble(f"POST {BUILDS}", "lost"))
    site.hides = 3
    assert runner(site).start(order()).phase is RunPhase.RUNNING
    assert len(site.of(order().key.text)) == 1


def test_of_two_builds_of_one_key_the_first_stands_and_the_other_is_cancelled(
    site: Buildkite, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, looked_first = order(), threading.local()
    both_have_looked = threading.Barrier(2)

    def answered(asked: Asked) -> Answered:
        answer = http_requests.ask_runner(asked)
        if not hasattr(looked_first, "is_over"):
            looked_first.is_over = True
            both_have_looked.wait(PATIENCE)
        return answer

    monkeypatch.setattr(buildkite, "ask_runner", answered)
    site.hides = 2  # neither of two workers sees the other's
    both = [threading.Thread(target=runner(site).start, args=(what,)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    monkeypatch.undo()
    assert [build["state"] for build in site.of(what.key.text)] == ["scheduled", "canceled"]
    site.move("bootstrap", 1, state="passed")
    assert looked(site, what).phase is RunPhase.SUCCEEDED


def test_a_build_that_somebody_built_again_counts(site: Buildkite) -> None:
    what = order()
    runner(site).start(what)
    site.move("bootstrap", 1, state="failed")
    assert looked(site, what).phase is RunPhase.FAILED
    site.created("bootstrap", {**site.builds["bootstrap"][0]})
    assert looked(site, what).phase is RunPhase.RUNNING
    site.move("bootstrap", 2, state="passed")
    assert looked(site, what).phase is RunPhase.SUCCEEDED


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "2"}, 2),
        ({"RateLimit-Reset": "1", "RateLimit-User-Reset": "3"}, 3),
        ({"Retry-After": "soon"}, 30),
        ({"Retry-After": "999999"}, 300),
        ({}, 30),
    ],
)
def test_a_rate_limit_is_kept_to_without_asking(site: Buildkite, headers: dict[str, str], seconds: int) -> None:
    worker = runner(site)
    site.troubles.append(Trouble("GET", 429, 1, headers))
    with pytest.raises(Unavailable, match="429"):
        worker.look(order())
    for ask in (worker.start, worker.stop):
        with pytest.raises(Unavailable, match=f"rate limit is reached: Backstop asks again in {seconds} s"):
            ask(order())
    with pytest.raises(Unavailable):
        worker.look(order())
    assert len(site.asked) == 1
    assert site.builds == {}


def test_after_the_rate_limit_it_goes_on(site: Buildkite, clock: Clock) -> None:
    worker = runner(site)
    site.troubles.append(Trouble(f"POST {BUILDS}", 429, 1, {"Retry-After": "1"}))
    with pytest.raises(Unavailable):
        worker.start(order())
    clock.seconds += 0.9
    with pytest.raises(Unavailable, match="Backstop asks again in 1 s"):
        worker.start(order())
    clock.seconds += 0.1
    worker.start(order())
    assert len(site.of(order().key.text)) == 1


@pytest.mark.parametrize(
    ("what", "token", "says"),
    [
        (order(pipeline="gone"), TOKEN, "made no build of gone: it answered HTTP 404: No pipeline found"),
        (order(commit=""), TOKEN, "made no build of bootstrap: it answered HTTP 422: Validation Failed"),
        (order(), "", "no usable token in BK"),
        (order(), "two\nlines", "no usable token in BK"),
        (order(pipeline="secret"), TOKEN, "may not start pipeline secret"),
    ],
)
def test_what_buildkite_or_the_settings_refuse_has_not_begun(
    site: Buildkite, what: RunOrder, token: str, says: str
) -> None:
    site.pipelines = ("bootstrap",)
    if what.pipeline == "gone":
        site.answer = lambda method, *_: (200, []) if method == "GET" else (404, {"message": "No pipeline found"})  # type: ignore[method-assign]
    with pytest.raises(BadInput, match=says):
        runner(site, token).start(what)
    assert site.of(what.key.text) == []


def test_a_token_that_is_refused_is_told_without_the_token(site: Buildkite) -> None:
    with pytest.raises(Unavailable, match="HTTP 401") as error:
        runner(site, "bkua_wrong").look(order())
    assert "bkua_wrong" not in str(error.value)


def test_one_over_its_limit_is_cancelled_and_has_failed(site: Buildkite) -> None:
    what = order(limit=timedelta(hours=1))
    runner(site).start(what)
    site.move("bootstrap", 1, state="running", created_at=now(timedelta(hours=2)))
    report = looked(site, what)
    assert (report.phase, report.said) == (
        RunPhase.FAILED,
        "build 1 of bootstrap did not end within 1h, and was cancelled",
    )
    assert site.builds["bootstrap"][0]["state"] == "canceled"


def test_one_that_passed_in_time_is_not_late_when_it_is_looked_at_late(site: Buildkite) -> None:
    what = order(limit=timedelta(hours=1))
    runner(site).start(what)
    ends = now(timedelta(days=1, minutes=-30))
    site.move("bootstrap", 1, state="passed", created_at=now(timedelta(days=1)), finished_at=ends)
    assert looked(site, what).phase is RunPhase.SUCCEEDED


def test_one_that_ends_while_it_is_being_stopped_is_taken_as_it_ended(site: Buildkite) -> None:
    runner(site).start(order())
    worker = runner(site)
    original = site.answer

    def ends_first(method: str, path: str, *rest: object) -> object:
        if path.endswith("/cancel"):
            site.move("bootstrap", 1, state="passed")
        return original(method, path, *rest)  # type: ignore[arg-type]

    site.answer = ends_first  # type: ignore[method-assign, assignment]
    report = worker.stop(order())
    assert report is not None
    assert report.phase is RunPhase.SUCCEEDED


HOSTILE = [
    b"",
    b"<html>login</html>",
    b"{}",
    b"[" * 100_000,
    b'[{"number": "NaN"}]',
    b"[null]",
    b'[{"number": 1, "state": null, "created_at": "yesterday"}]',
    b"x" * 5_000_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_an_answer_that_makes_no_sense_is_one_sentence(site: Buildkite, text: bytes, tmp_path: Path) -> None:
    site.answer = lambda *_: (200, text)  # type: ignore[method-assign]
    for ask in (runner(site).look, runner(site).start, runner(site).stop):
        with pytest.raises(Unavailable) as error:
            ask(order())
        assert len(error.value.message) < 500
        assert error.value.message.isprintable()
