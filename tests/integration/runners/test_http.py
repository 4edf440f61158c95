"""Runs of a service over HTTP, with idempotency keys; and the walls around what may be called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from activities.adapters.runners.http import HttpRunner
from activities.adapters.runners.outside_checks import OutsideChecks
from activities.adapters.runners.settings import Allowed, RunnerSettings
from models.bringup.checks import CheckOrder
from models.bringup.messages import BringupStart
from models.bringup.reducers import open_bringup
from models.bringup.request_builders import check_order, run_order, supply_order
from models.bringup.runs import RunKey, RunOrder, RunPhase
from models.bringup.state import StepRun
from models.errors import BackstopError, BadInput, Unavailable
from tests.integration.runners.servers import Service, Trouble, serving
from tests.unit.bringup_world import NOON, entry, recipe

SECRET = "s3cret"  # what only the worker's environment holds


@pytest.fixture
def site() -> Iterator[Service]:
    site = Service()
    with serving(site):
        yield site


def runner(site: Service, environment: dict[str, str] | None = None, **settings: Any) -> HttpRunner:
    given = {"hosts": [{"origin": site.url}], "networks": ["127.0.0.0/8"], **settings}
    return HttpRunner(Allowed(RunnerSettings.model_validate(given), environment or {}))


def order(site: Service, step: str = "nodes", **fields: object) -> RunOrder:
    given: dict[str, object] = {
        "key": RunKey(cluster="Ünïcode \N{FIRE}", attempt=1, step=step),
        "runner": "http",
        "url": f"{site.url}/runs",
        "field": "state.name",
        "succeeded": ("done", "kept"),
        "failed": ("broken",),
        "values": {"cluster": "h100-new"},
        "limit": timedelta(hours=1),
    }
    return RunOrder.model_validate({**given, **fields})


STATUS = {"the same post again": "", "a status url with its id": "/runs/{id}", "one with the key": "/by-key/{key}"}


@pytest.mark.parametrize("path", STATUS.values(), ids=list(STATUS))
def test_it_is_found_again_by_another_worker(site: Service, path: str) -> None:
    what = order(site, status_url=site.url + path if path else "")
    report = runner(site).start(what)
    assert (report.phase, report.said) == (RunPhase.RUNNING, f"{site.url} says working")
    (run,) = site.runs.values()
    for state, phase in (("done", RunPhase.SUCCEEDED), ("broken", RunPhase.FAILED), ("invented", RunPhase.RUNNING)):
        run.update(state={"name": state}, log="\x1b[1mline\x1b[0m\nlast", link="https://provision.example/1")
        found = runner(site).look(what)
        assert found is not None
        assert (found.phase, found.tail, found.link) == (phase, "line\nlast", "https://provision.example/1")
    assert list(site.runs) == [what.key.text]


@pytest.mark.parametrize("kind", [500, 503, 429, 408, "lost"])
def test_a_post_that_was_not_answered_is_sent_again_and_runs_once(site: Service, kind: int | str) -> None:
    site.troubles.append(Trouble("POST /runs", kind))
    worker, what = runner(site), order(site)
    with pytest.raises(Unavailable):
        worker.start(what)
    worker.start(what)
    assert list(site.runs) == [what.key.text]


def test_one_that_is_taken_in_still_is_running(site: Service) -> None:
    site.troubles.append(Trouble("POST /runs", 409))
    assert runner(site).start(order(site)).phase is RunPhase.RUNNING


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_the_service_refuses_has_not_begun(site: Service, status: int) -> None:
    site.troubles.append(Trouble("POST /runs", status))
    with pytest.raises(BadInput, match=f"answered HTTP {status}: in trouble; nothing has begun"):
        runner(site).start(order(site))
    assert site.runs == {}


@pytest.mark.parametrize("more", [{}, {"status_url": "/runs/{id}"}])
def test_a_run_that_is_to_end_runs_and_nobody_here_can_end_it(site: Service, more: dict[str, str]) -> None:
    what, worker = order(site), runner(site)
    if more:
        what = what.model_copy(update={"status_url": site.url + more["status_url"]})
    worker.start(what)
    report = worker.stop(what)
    assert report is not None
    assert (report.phase, report.endless) == (RunPhase.RUNNING, True)
    assert report.said.endswith(f"Backstop cannot end a run at {site.url}: end it there")


@pytest.mark.parametrize("kind", [401, 404, 500, "lost"])
def test_a_service_that_does_not_say_ends_no_run(site: Service, kind: int | str) -> None:
    what, worker = order(site), runner(site)
    worker.start(what)
    site.troubles.append(Trouble("POST /runs", kind))
    with pytest.raises(Unavailable):
        worker.look(what)


@pytest.mark.parametrize(
    ("state", "field", "phase"),
    [
        ({"name": "done"}, "state.name", RunPhase.SUCCEEDED),
        ([{"x": "kept"}], "state.0.x", RunPhase.SUCCEEDED),
        (True, "state", RunPhase.RUNNING),
        ({"name": ["done"]}, "state.name", RunPhase.RUNNING),
        ({"name": None}, "state.name", RunPhase.RUNNING),
        ("done", "state.name", RunPhase.RUNNING),
        ({"name": "DONE"}, "state.name", RunPhase.RUNNING),
        ({"name": "done "}, "state.name", RunPhase.RUNNING),
        ([], "state.0", RunPhase.RUNNING),
        ([], "state.99999999999999999999", RunPhase.RUNNING),
    ],
)
def test_only_the_very_word_at_the_very_place_ends_a_run(
    site: Service, state: object, field: str, phase: RunPhase
) -> None:
    what, worker = order(site, field=field), runner(site)
    worker.start(what)
    site.runs[what.key.text]["state"] = state
    report = worker.look(what)
    assert report is not None
    assert report.phase is phase


def test_true_and_numbers_are_words_too(site: Service) -> None:
    what = order(site, field="id", succeeded=("1",))
    assert runner(site).start(what).phase is RunPhase.SUCCEEDED


def test_a_host_s_token_goes_to_that_host_alone(site: Service) -> None:
    other = Service()
    with serving(other):
        hosts = [{"origin": site.url, "token": "PROVISION"}, {"origin": other.url}]
        worker = runner(site, {"PROVISION": SECRET}, hosts=hosts)
        report = worker.start(order(site))
        worker.start(order(other))
    assert site.headers[0]["Authorization"] == f"Bearer {SECRET}"
    assert site.headers[0]["Idempotency-Key"] == "%C3%9Cn%C3%AFcode%20%F0%9F%94%A5/1/nodes"
    assert "Authorization" not in other.headers[0]
    assert SECRET not in report.model_dump_json()


def test_a_token_that_is_not_there_is_said(site: Service) -> None:
    hosts = [{"origin": site.url, "token": "PROVISION"}]
    with pytest.raises(BadInput, match="environment has no usable token in PROVISION"):
        runner(site, {}, hosts=hosts).start(order(site))
    assert site.asked == []


def test_a_redirect_is_not_followed(site: Service) -> None:
    other = Service()
    with serving(other):
        site.troubles.append(Trouble("POST /runs", 307, 1, {"Location": f"{other.url}/runs"}))
        with pytest.raises(Unavailable, match="HTTP 307"):
            runner(site).start(order(site))
    assert other.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/runs",
        "https://127.0.0.1:{port}/runs",
        "http://localhost:{port}/runs",
        "http://127.0.0.1.evil.example:{port}/runs",
        "http://user:pass@127.0.0.1:{port}/runs",
        "http://127.0.0.1:{port}@evil.example/runs",
        "http://evil.example#@127.0.0.1:{port}/runs",
        "http://evil.example\\@127.0.0.1:{port}/runs",
        "http://2130706433:{port}/runs",
        "file:///etc/passwd",
        "ftp://127.0.0.1:{port}/",
        "//127.0.0.1:{port}/runs",
        "http://[::ffff:127.0.0.1]:{port}/runs",
        "http://",
        "",
        "http://127.0.0.1:99999/",
        "http://\ud800/",
        "http://a\nb/",
    ],
)
def test_nothing_but_the_hosts_that_are_listed_is_called(site: Service, url: str) -> None:
    text = url.replace("{port}", str(site.port))
    with pytest.raises(BadInput) as error:
        runner(site).start(order(site, url=text))
    assert "user:pass" not in error.value.message
    assert site.asked == []


def test_a_name_that_is_listed_and_leads_inside_is_not_called(site: Service) -> None:
    with pytest.raises(
        BadInput, match=r"in an internal network: allow that network in the field networks of .*BACKSTOP_RUNNERS"
    ):
        runner(site, networks=[]).start(order(site))
    hosts = [{"origin": f"http://localhost:{site.port}"}]
    with pytest.raises(BadInput, match="in an internal network"):
        runner(site, hosts=hosts, networks=[]).start(order(site, url=f"http://localhost:{site.port}/runs"))
    assert site.asked == []


@pytest.mark.parametrize(
    ("origin", "url", "holds"),
    [
        ("https://*.example", "https://a.example/ready", True),
        ("https://*.example", "https://A.B.Example/ready", True),
        ("https://*.example", "https://example/", False),
        ("https://*.example", "https://aexample/", False),
        ("https://*.example", "https://a.example.evil/", False),
        ("https://*.example", "https://a.example:8443/", False),
        ("https://*.example:8443", "https://a.example:8443/", True),
        ("https://a.example", "https://a.example:443/", True),
        ("https://a.example", "https://a.example./", False),
        ("https://a.example", "http://a.example/", False),
        ("http://[::1]:80", "http://[::1]/", True),
    ],
)
def test_which_hosts_an_entry_holds(origin: str, url: str, holds: bool) -> None:
    from activities.adapters.runners.http_requests import url_of
    from activities.adapters.runners.settings import AllowedHost

    assert AllowedHost(origin=origin).holds(url_of(url)) is holds


PLACES = ("step", "undo", "status", "check", "supply", "capacity")


def of_recipe(place: str, url: str, value: str) -> RunOrder | CheckOrder:
    """Return the order of a recipe with this URL, filled with the entry's value."""
    step: dict[str, Any] = {"name": "x", "with": "http", "url": "http://h/runs"}
    reading = {"with": "http", "url": url}
    ways: dict[str, dict[str, Any]] = {
        "step": {"provision": [step | {"url": url}]},
        "undo": {"provision": [step | {"undo": {"url": url}}]},
        "status": {"provision": [step | {"status_url": url}]},
        "check": {"validate": [{"name": "c", "http": url}]},
        "supply": {"supply": reading | {"needs": {"gpus": 1}}},
        "capacity": {"capacity": reading},
    }
    start = BringupStart(entry=entry(values={"v": value}), recipe=recipe(**ways[place]), actor="ann")
    bringup = open_bringup(start, 1, NOON)
    bringup = bringup.but(runs={name: StepRun(attempt=1) for name in ("x", "x/undo")})
    orders = {"check": lambda: check_order(bringup, "c"), "supply": lambda: supply_order(bringup)}
    orders["capacity"] = lambda: check_order(bringup, "capacity")
    return orders[place]() if place in orders else run_order(bringup, "x/undo" if place == "undo" else "x")


def lines_asked(site: Service, place: str, url: str, value: str) -> list[str]:
    """The paths that the service was asked for, through the runner or the checks of a worker that lists it."""
    what = of_recipe(place, url, value)
    allowed = Allowed(RunnerSettings.model_validate({"hosts": [{"origin": site.url}], "networks": ["127.0.0.0/8"]}))
    with suppress(BackstopError):
        if isinstance(what, CheckOrder):
            OutsideChecks(allowed).check(what)
        elif place == "status":
            HttpRunner(allowed).look(what)
        else:
            HttpRunner(allowed).start(what)
    return [line.partition(" ")[2] for line in site.asked]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("h100-new_1.eu", "h100-new_1.eu"),
        ("../../admin/delete", "..%2F..%2Fadmin%2Fdelete"),
        ("a/b", "a%2Fb"),
        ("/a//b/", "%2Fa%2F%2Fb%2F"),
        ("a:b,c=d+e", "a%3Ab%2Cc%3Dd%2Be"),
        ("...", "..."),
    ],
)
def test_a_value_is_one_segment_of_a_url_whatever_it_holds(site: Service, place: str, value: str, sent: str) -> None:
    url = f"{site.url}/clusters/{{v}}/apply?cluster={{v}}&dry=1"
    assert lines_asked(site, place, url, value) == [f"/clusters/{sent}/apply?cluster={sent}&dry=1"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("path", "value"),
    [("/clusters/{v}/apply", ".."), ("/clusters/{v}", ".."), ("/clusters/.{v}/x", "."), ("/clusters/{v}{v}/x", ".")],
)
def test_a_value_that_no_encoding_makes_a_segment_is_sent_nowhere(
    site: Service, place: str, path: str, value: str
) -> None:
    assert lines_asked(site, place, site.url + path, value) == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("http://{v}.cluster.example/ready", "127.0.0.1:PORT/admin"),
        ("http://{v}.cluster.example/ready", "127.0.0.1:PORT/"),
        ("http://127.0.0.1:{v}/ready", "PORT/admin"),
        ("http://127.0.0.1{v}/ready", ":PORT/admin"),
        ("{v}/ready", "http://127.0.0.1:PORT"),
    ],
)
def test_a_value_chooses_no_other_host_or_port(site: Service, place: str, template: str, value: str) -> None:
    assert lines_asked(site, place, template, value.replace("PORT", str(site.port))) == []


@pytest.mark.parametrize("path", ["/a/../b", "/a/%2e%2e/b", "/a/.%2E/b", "/a/./b", "/.."])
def test_a_url_that_leads_aside_is_not_called(site: Service, path: str) -> None:
    with pytest.raises(BadInput, match="leads to another place on the host"):
        runner(site).start(order(site, url=site.url + path))
    assert site.asked == []


def test_an_id_that_the_service_answers_leads_nowhere_else(site: Service) -> None:
    what, worker = order(site, status_url=f"{site.url}/runs/{{id}}/state"), runner(site)
    worker.start(what)
    site.runs[what.key.text]["id"] = ".."
    with pytest.raises(BadInput, match="leads to another place on the host"):
        runner(site).look(what)
    assert {line for line in site.asked if line.startswith("GET")} == set()
