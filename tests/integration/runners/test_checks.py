"""Checks of real programs, servers and a Prometheus that answers what it is told to. None is green unseen."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from activities.adapters.prometheus.prometheus import PrometheusConnection
from activities.adapters.runners import short_program, wrapper
from activities.adapters.runners.outside_checks import OutsideChecks
from activities.adapters.runners.settings import Allowed, RunnerSettings
from models.bringup.checks import CheckAnswer, CheckKind, CheckOrder, Colour
from models.cluster.island import Island
from tests.integration.runners.servers import Server, Service, Trouble, serving
from tests.waiting import wait_until

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GREEN, RED, UNKNOWN = Colour


@pytest.fixture
def site() -> Iterator[Service]:
    site = Service()
    with serving(site):
        yield site


def checks(site: Server | None = None, **more: Any) -> OutsideChecks:
    given: dict[str, Any] = {"programs": [{"program": "/bin/sh"}, {"program": "/no/such"}]}
    if site is not None:
        given.update(hosts=[{"origin": site.url}], networks=["127.0.0.0/8"])
    allowed = Allowed(RunnerSettings.model_validate({**given, **more}), {**os.environ, "SECRET": "s3cret"})
    prometheus = {} if site is None else {"local": PrometheusConnection(url=site.url, timeout=timedelta(seconds=50))}
    return OutsideChecks(allowed, prometheus, now=lambda: NOW)


def asked(site: Server | None = None, **fields: Any) -> CheckAnswer:
    given = {"cluster": "h100-new", "name": "drift-free", "limit": timedelta(seconds=60), **fields}
    return checks(site).check(CheckOrder.model_validate(given))


def shell(text: str, **fields: Any) -> CheckAnswer:
    return asked(kind="command", run=("/bin/sh", "-c", text), **fields)


@pytest.mark.parametrize(
    ("text", "colour", "said", "number"),
    [
        ("exit 0", GREEN, "/bin/sh ended with exit status 0", None),
        ("echo no drift", GREEN, "no drift", None),
        ("echo looked; echo 0.98", GREEN, "0.98", 0.98),
        ("echo nodes 44", GREEN, "nodes 44", 44),
        ("echo 2 changes >&2; exit 2", RED, "/bin/sh ended with exit status 2: 2 changes", None),
        ("exit 1", RED, "/bin/sh ended with exit status 1", None),
        ("kill -9 $$", RED, "/bin/sh was killed by signal 9", None),
        ("echo 1e999", GREEN, "1e999", None),
        ("echo nan", GREEN, "nan", None),
        (r"printf '\033[2J\033]0;x\007red\377\000\nlast\r\n'", GREEN, "last", None),
        ("printf '%01000d' 5", GREEN, "0" * 300 + " ...", None),
        ("sleep 300 & echo in the background", GREEN, "in the background", None),
        ("echo $SECRET $BACKSTOP_CLUSTER", GREEN, "h100-new", None),
    ],
)
def test_a_program_answers_by_its_exit_status(text: str, colour: Colour, said: str, number: float | None) -> None:
    assert shell(text) == CheckAnswer(colour=colour, said=said, number=number, at=NOW)


@pytest.mark.parametrize("text", ["sleep 600", "trap '' TERM HUP; sleep 600; sleep 600", "while :; do echo x; done"])
def test_a_check_that_hangs_is_unknown_and_gone(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over as soon as it runs."""
    pid = tmp_path / "pid"
    clock = SimpleNamespace(monotonic=lambda: 3.0 if pid.exists() else 0.0)
    monkeypatch.setattr(short_program, "time", clock)
    answer = shell(f"echo $$ > {pid}.new; mv {pid}.new {pid}; {text}", limit=timedelta(seconds=3))
    assert (answer.colour, answer.said) == (UNKNOWN, "/bin/sh did not end within 3s, and was killed")
    group = int(pid.read_text())
    wait_until(lambda: not any(stat.group == group and stat.lives for stat in processes()), "it is gone")


def processes() -> list[wrapper.Stat]:
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [stat for stat in map(wrapper.stat_of, numbers) if stat is not None]


def test_a_check_that_prints_a_lot_costs_no_memory() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = shell("yes | head -c 200000000; echo; echo over", limit=timedelta(seconds=60))
    assert (answer.colour, answer.said) == (GREEN, "over")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KB


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (("/bin/cat", "/etc/shadow"), "may not run /bin/cat"),
        (("/no/such",), "/no/such cannot be run: No such file or directory"),
        ((), "no program"),
        (("/bin/sh", "\0"), "must be valid text"),
    ],
)
def test_what_cannot_be_run_is_unknown(run: tuple[str, ...], says: str) -> None:
    answer = asked(kind="command", run=run)
    assert answer.colour is UNKNOWN
    assert says in answer.said


def test_no_shell_has_a_word_in_it(tmp_path: Path) -> None:
    answer = asked(kind="command", run=("/bin/sh", "-c", 'printf %s "$1"', "-", f"$(touch {tmp_path}/x); `id` -rf"))
    assert answer.said == f"$(touch {tmp_path}/x); `id` -rf"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "colour", "says"),
    [
        ("/ready", GREEN, "answered HTTP 200: as it is"),
        ("/broken", RED, "answered HTTP 503: as it is"),
        ("/moved", RED, "answered HTTP 302: as it is"),
        ("/none", RED, "answered HTTP 404: as it is"),
    ],
)
def test_a_url_answers_by_its_status(site: Service, path: str, colour: Colour, says: str) -> None:
    answer = asked(site, kind="http", url=site.url + path)
    assert (answer.colour, answer.said) == (colour, f"{site.url} {says}")


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/silent", "http://127.0.0.1:1/", "file:///etc/passwd", "x"])
def test_a_url_that_does_not_answer_is_unknown(site: Service, url: str) -> None:
    text = url.replace("{port}", str(site.port))
    hosts = [{"origin": site.url}, {"origin": "http://127.0.0.1:1"}]
    order = CheckOrder(cluster="c", name="n", kind=CheckKind.HTTP, url=text, limit=timedelta(seconds=1))
    assert checks(site, hosts=hosts).check(order).colour is UNKNOWN


def test_a_host_that_is_not_listed_is_not_called(site: Service) -> None:
    order = CheckOrder(cluster="c", name="n", kind=CheckKind.HTTP, url=f"{site.url}/ready")
    answer = checks(site, hosts=[]).check(order)
    assert answer.colour is UNKNOWN
    assert answer.said.startswith(f"this worker may not call {site.url}")
    assert site.asked == []


class Prometheus(Server):
    document: Any = None
    queries: tuple[Any, ...] = ()

    def answer(self, method: str, path: str, query: list[tuple[str, str]], body: Any, headers: dict[str, str]) -> Any:
        self.queries += (body,)
        return 200, self.document


def vector(*values: str) -> dict[str, Any]:
    series = [{"metric": {"x": str(n)}, "value": [1, value]} for n, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": series}}


SCALAR = {"status": "success", "data": {"resultType": "scalar", "result": [1, "0.5"]}}


@pytest.mark.parametrize(
    ("document", "bounds", "colour", "number"),
    [
        (vector("0.99"), {"at_least": 0.98}, GREEN, 0.99),
        (vector("0.97"), {"at_least": 0.98}, RED, 0.97),
        (vector("3"), {"at_most": 2}, RED, 3),
        (vector("2"), {"at_least": 2, "at_most": 2}, GREEN, 2),
        (SCALAR, {"at_most": 1}, GREEN, 0.5),
        (vector(), {"at_most": 1}, UNKNOWN, None),
        (vector("1", "1"), {"at_least": 1}, UNKNOWN, None),
        (vector("NaN"), {"at_least": 0}, UNKNOWN, None),
        (vector("+Inf"), {"at_least": 0}, UNKNOWN, None),
        (vector("many"), {"at_least": 0}, UNKNOWN, None),
        ({"status": "error", "error": "parse error\x1b[2J"}, {"at_least": 0}, UNKNOWN, None),
        ({"status": "success", "data": {"resultType": "matrix", "result": [{}]}}, {"at_least": 0}, UNKNOWN, None),
        ([], {"at_least": 0}, UNKNOWN, None),
        (None, {"at_least": 0}, UNKNOWN, None),
        (b"<html>", {"at_least": 0}, UNKNOWN, None),
    ],
)
def test_a_query_answers_by_its_one_number(document: Any, bounds: Any, colour: Colour, number: float | None) -> None:
    site = Prometheus()
    site.document = document
    with serving(site):
        answer = asked(site, kind="promql", query="min(up)", **bounds)
    assert (answer.colour, answer.number) == (colour, number)
    assert answer.said.isprintable()
    assert (site.asked, site.queries) == (["POST /api/v1/query"], (b"query=min%28up%29",))


def test_a_prometheus_that_is_not_named_or_not_there_is_unknown(site: Service) -> None:
    assert "has no Prometheus 'other'" in asked(site, kind="promql", query="up", connection="other").said
    site.troubles.append(Trouble("POST", 500))
    assert asked(site, kind="promql", query="up", at_least=1).colour is UNKNOWN


NEEDS = {"cpu_cores": 1200, "gpus": 512}


@pytest.mark.parametrize(
    ("printed", "colour", "said"),
    [
        ('{"cpu_cores": 1200, "gpus": 512}', GREEN, "2 needs granted in full"),
        ('{"cpu_cores": 1e4, "gpus": 511}', RED, "too little is granted: gpus: 511 of 512"),
        ('{"cpu_cores": 0, "gpus": 0}', RED, "too little is granted: cpu_cores: 0 of 1200, gpus: 0 of 512"),
        ('{"cpu_cores": 1200}', UNKNOWN, "gives no number for gpus"),
        ('{"cpu_cores": "1200", "gpus": 512}', UNKNOWN, "gives no number for cpu_cores"),
        ('{"cpu_cores": true, "gpus": 512}', UNKNOWN, "gives no number for cpu_cores"),
        ('{"cpu_cores": NaN, "gpus": 512}', UNKNOWN, "gives no number for cpu_cores"),
        ("[1]", UNKNOWN, "did not answer with a JSON object"),
        ("granted", UNKNOWN, "did not print JSON: granted"),
        ("", UNKNOWN, "did not print JSON: nothing"),
    ],
)
def test_supply_is_there_where_each_need_is(site: Service, printed: str, colour: Colour, said: str) -> None:
    run = ("/bin/sh", "-c", 'echo a warning >&2; printf %s "$1"', "-", printed)
    answer = asked(kind="supply", run=run, needs=NEEDS)
    assert answer.colour is colour
    assert said in answer.said
    if printed.startswith("{"):
        site.answer = lambda *_: (200, printed.encode())  # type: ignore[method-assign]
        assert asked(site, kind="supply", url=f"{site.url}/quota", needs=NEEDS).colour is colour


def test_a_supply_that_cannot_be_asked_is_unknown(site: Service) -> None:
    run = ("/bin/sh", "-c", "echo no login >&2; exit 1")
    answer = asked(kind="supply", run=run, needs=NEEDS)
    assert (answer.colour, answer.said) == (UNKNOWN, "/bin/sh ended with exit status 1: no login")
    assert asked(site, kind="supply", url=f"{site.url}/broken", needs=NEEDS).colour is UNKNOWN


def island(name: str, total: int, healthy: int) -> dict[str, Any]:
    return {"name": name, "total_gpus": total, "healthy_gpus": healthy}


@pytest.mark.parametrize(
    ("found", "colour", "said"),
    [
        ({"islands": [island("a", 256, 250), island("b", 256, 256)]}, GREEN, "512 GPUs installed, 500 required"),
        ({"islands": [island("a", 256, 250)]}, RED, "256 GPUs installed, 500 required"),
        ({"islands": [island("a", 256, 257)]}, UNKNOWN, "above total_gpus"),
        ({"islands": [island("a", 256, 250), island("a", 256, 256)]}, UNKNOWN, "names an island twice"),
        ({"islands": [{"name": "a", "total_gpus": 512.5, "healthy_gpus": 1}]}, UNKNOWN, "that are not valid"),
        ({"islands": [{**island("a", 512, 1), "surprise": 1}]}, UNKNOWN, "that are not valid"),
        ({"islands": []}, UNKNOWN, "did not answer with a list of islands"),
        ({"nodes": 3}, UNKNOWN, "did not answer with a list of islands"),
        (7, UNKNOWN, "did not answer with a list of islands"),
    ],
)
def test_capacity_is_what_is_installed_by_what_is_printed(found: Any, colour: Colour, said: str) -> None:
    run = ("/bin/sh", "-c", 'printf %s "$1"', "-", json.dumps(found))
    answer = asked(kind="capacity", run=run, gpus=500)
    assert answer.colour is colour
    assert said in answer.said
    if colour is GREEN:
        assert answer.islands == tuple(Island(**each) for each in found["islands"])
        assert answer.number == 512


@pytest.mark.parametrize("kind", ["healthy", "contiguous", "capacity"])
def test_a_check_of_the_health_source_is_not_asked_here(kind: str) -> None:
    assert asked(kind=kind, gpus=1).colour is UNKNOWN


def test_nothing_is_raised_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.adapters.runners.outside_checks.run_program", lambda *_: 1 / 0)
    answer = shell("exit 0")
    assert (answer.colour, answer.said) == (UNKNOWN, "cannot be asked: ZeroDivisionError division by zero")
