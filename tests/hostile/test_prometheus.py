"""A Prometheus that tells rubbish of one cluster, or of all, beside two that are well (docs/prometheus.md)."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from activities.adapters import http
from activities.adapters.ledger.facade import Ledger
from activities.adapters.prometheus.prometheus import PrometheusConnection, Prometheuses, document
from activities.adapters.runners.outside_checks import OutsideChecks
from activities.adapters.runners.settings import Allowed, RunnerSettings
from activities.bringup.health_checks import OwnHealth
from models.bringup.checks import CheckKind, CheckOrder, Colour
from models.cluster.readings import HealthSample
from models.cluster.sources import PrometheusSource
from models.errors import Unavailable
from tests.hostile import Rubbish, table, threw
from tests.integration.ledger.world import stage
from tests.servers import new_ledger
from tests.tried import TRIED
from tests.waiting import PATIENCE, wait_until

SOURCE = "Prometheus"
WELL = ("east", "west")
Row = dict[str, Any]


def series(cluster: str, value: Any, island: str = "main") -> Row:
    return {"metric": {"cluster": cluster, "island": island}, "value": [time.time(), value]}


class Server:
    """Answers as Prometheus: 16 GPUs of `east`, `west` and `bad`, 15 of them healthy. `rows` has more, by query."""

    def __init__(self) -> None:
        self.rows: dict[str, Callable[[list[Row]], list[Row]]] = {}
        self.whole: Callable[[BaseHTTPRequestHandler], None] | None = None
        """What is answered instead of all that."""
        self.more: dict[str, Any] = {}
        server = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
                try:
                    if server.whole is not None:
                        server.whole(self)
                    else:
                        send(self, json.dumps(server.document(parse_qs(asked)["query"][0])).encode())
                except OSError:
                    return  # whoever asked has had enough

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def document(self, query: str) -> Any:
        value = {"installed": "16", "healthy": "15", "seen": str(time.time())}[query]
        rows = [series(cluster, value) for cluster in ("east", "bad", "west")]
        if query in self.rows:
            rows = self.rows[query](rows)
        return {"status": "success", "data": {"resultType": "vector", "result": rows}, **self.more}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"


def send(request: BaseHTTPRequestHandler, body: bytes, code: int = 200) -> None:
    request.send_response(code)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()


@pytest.fixture
def beside() -> Iterator[Server]:
    """Another Prometheus, which is well."""
    made = Server()
    yield made
    made.http.shutdown()


class World:
    """A ledger with `bad`, `east` and `west` of one Prometheus, and `south` of another."""

    def __init__(self, ledger: Ledger, here: Server, there: Server) -> None:
        self.ledger = ledger
        own: dict[str, Any] = {name: name for name in ("installed", "healthy", "seen")}
        own["timeout"] = timedelta(seconds=50)  # the longest there is
        connections = {
            "here": PrometheusConnection(url=here.url, **own),
            "there": PrometheusConnection(url=there.url, **own),
        }
        self.sources = Prometheuses(ledger, connections, timedelta(0), patience=timedelta(seconds=PATIENCE))
        self._health = ledger.health.feed_from(self.sources.refresh_health)

    def read(self) -> dict[str, HealthSample]:
        return self._health.read(["bad", "east", "west", "south"])

    def limits(self, timeout: timedelta) -> None:
        """Set how long one Prometheus may take to answer."""
        of = self.sources._connections
        self.sources._connections = {name: each.model_copy(update={"timeout": timeout}) for name, each in of.items()}


@pytest.fixture
def world(tmp_path: Path, server: Server, beside: Server) -> Iterator[World]:
    path = tmp_path / "ledger.db"
    new_ledger(path)
    names = {"bad": "here", "east": "here", "west": "here", "south": "there"}
    clusters = [
        {
            "name": name,
            "islands": [{"name": "main", "total_gpus": 16, "healthy_gpus": 12}],
            "prometheus": {"connection": connection, "cluster": "east" if name == "south" else name},
        }
        for name, connection in names.items()
    ]
    with Ledger(f"sqlite:///{path}") as ledger:
        stage(ledger, {"clusters": clusters}, "first")
        ledger.fleet.commit_import("first", 2, "tpm", ledger.now() - timedelta(minutes=5))
        yield World(ledger, server, beside)


def counts(found: dict[str, HealthSample], name: str) -> tuple[int, int]:
    return found[name].total_gpus, found[name].healthy_gpus


def but(value: Any, *more: Row) -> Callable[[list[Row]], list[Row]]:
    """The series of `bad` has this value, and there are more of them."""

    def changed(rows: list[Row]) -> list[Row]:
        return [{**row, "value": [0, value]} if row["metric"]["cluster"] == "bad" else row for row in rows] + [*more]

    return changed


OF_ONE = [
    *(
        Rubbish(f"{query}: {value[:12]}", (query, but(value)))
        for query in ("installed", "healthy")
        for value in ("NaN", "+Inf", "-Inf", "-1", "7.5", "1e9", "20000000", "1e300", "many", "", "9" * 5000)
    ),
    *(
        Rubbish(f"seen: {value}", ("seen", but(value)))
        for value in ("NaN", "+Inf", "0", "-1", "253402300800", "1e300", "now")
    ),
    Rubbish("seen: in milliseconds", ("seen", but(str(time.time() * 1000)))),
    Rubbish("seen: in two hours", ("seen", but(str(time.time() + 7200)))),
    Rubbish("a list for a value", ("healthy", but([1]))),
    Rubbish("nothing for a value", ("healthy", but(None))),
    Rubbish("a series twice", ("healthy", but("15", series("bad", "3")))),
    Rubbish("a series twice, and equal", ("installed", but("16", series("bad", "16")))),
    Rubbish("an island called by 300 letters", ("installed", but("16", series("bad", "1", "x" * 300)))),
    Rubbish("an island with a line break", ("installed", but("16", series("bad", "1", "a\nb")))),
    Rubbish("an island with half a letter", ("installed", but("16", series("bad", "1", "\udcff")))),
    Rubbish(
        "a row that is cut",
        ("healthy", lambda rows: [{**r, "value": [1]} if i == 1 else r for i, r in enumerate(rows)]),
    ),
]


@table(OF_ONE)
def test_a_series_of_one_cluster_costs_that_cluster_alone_and_is_named(
    rubbish: Rubbish, server: Server, world: World
) -> None:
    query, changed = rubbish.value
    server.rows = {query: changed}
    found = world.read()
    for name in (*WELL, "south"):
        assert counts(found, name) == (16, 15)
        assert found[name].fault == ""
    assert counts(found, "bad") == (16, 12), "what was known of it stands"
    assert "Prometheus here" in found["bad"].fault
    told = world.sources.check()
    assert told["bad"]
    assert [told[name] for name in (*WELL, "south")] == ["", "", ""]
    assert "\n" not in told["bad"]
    assert len(told["bad"]) <= 400
    server.rows = {}
    assert counts(world.read(), "bad") == (16, 15), "and mended it is read again"
    assert world.sources.check()["bad"] == ""
    threw(SOURCE)


OF_NOBODY = [
    Rubbish("a series without labels", {"metric": {}, "value": [0, "7"]}),
    Rubbish("a series that is text", "rubbish"),
    Rubbish("a series that is nothing", None),
    Rubbish("labels that are a list", {"metric": ["bad"], "value": [0, "7"]}),
    Rubbish("a cluster that nobody has", series("nobody", "NaN")),
    Rubbish("a cluster of 10,000 letters", series("x" * 10_000, "NaN")),
]


@table(OF_NOBODY)
def test_a_series_of_nobody_costs_nobody(rubbish: Rubbish, server: Server, world: World) -> None:
    server.rows = {query: lambda rows: [rubbish.value, *rows] for query in ("installed", "healthy", "seen")}
    found = world.read()
    assert {counts(found, name) for name in found} == {(16, 15)}
    assert {s.fault for s in found.values()} == {""}
    threw(SOURCE)


def begins(request: BaseHTTPRequestHandler, head: bool) -> None:
    """Send a status first, unless the head itself is to drip."""
    if not head:
        request.send_response(200)
        request.end_headers()


def cut_short(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'{"status": ')


def elsewhere(request: BaseHTTPRequestHandler) -> None:
    request.send_response(307)
    request.send_header("Location", "http://127.0.0.1:1/")
    request.end_headers()


def body(content: bytes, code: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda request: send(request, content, code)


WHOLE = [
    Rubbish("503", (body(b"overloaded\n" * 10, 503), "refused a query (503): overloaded")),
    Rubbish("a page in HTML", (body(b"<html><body>Sign in</body></html>"), "did not answer with JSON")),
    Rubbish("nothing", (body(b""), "did not answer with JSON")),
    Rubbish("10 MB of letters", (body(b"x" * 10_000_000), "did not answer with JSON")),
    Rubbish("20 MB of JSON", (body(b'"' + b"x" * 20_000_000 + b'"'), "more than 16,000,000 bytes")),
    Rubbish("a deep list", (body(b"[" * 500_000), "did not answer with JSON")),
    Rubbish("half a letter", (body(b'{"status": "\xff"}'), "did not answer with JSON")),
    Rubbish("another document", (body(b"[]"), "that Backstop cannot read")),
    Rubbish("a number of 5,000 digits", (body(b"9" * 5000), "did not answer with JSON")),
    Rubbish("a body that is cut", (cut_short, "did not answer")),
    Rubbish("a redirect", (elsewhere, "refused a query (307)")),
    Rubbish("a line that is no HTTP", (lambda r: r.wfile.write(b"SSH-2.0-x\r\n"), "did not answer")),
]


@table(WHOLE)
def test_an_answer_that_is_rubbish_costs_its_own_clusters_alone(rubbish: Rubbish, server: Server, world: World) -> None:
    server.whole, said = rubbish.value
    costs_its_own_clusters_alone(server, world, said)


def costs_its_own_clusters_alone(server: Server, world: World, said: str) -> None:
    found = world.read()
    assert counts(found, "south") == (16, 15)
    assert found["south"].fault == ""
    for name in ("bad", *WELL):
        assert counts(found, name) == (16, 12)
        assert said in found[name].fault
    server.whole = None
    wait_until(lambda: counts(world.read(), "east") == (16, 15), "mended, it is read again")
    threw(SOURCE)


@pytest.mark.parametrize("head", [True, False], ids=["head", "body"])
def test_an_answer_that_drips_is_cut_when_its_time_is_over(
    head: bool, server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a query is over when the server has dripped a while: then it drips no more."""
    limits: list[float] = []
    dripped = threading.Event()

    def timeout(seconds: float) -> asyncio.Timeout:
        limits.append(seconds)
        limit, loop = asyncio.timeout(None), asyncio.get_running_loop()

        def ends() -> None:
            dripped.wait()
            loop.call_soon_threadsafe(lambda: limit.reschedule(loop.time()))

        threading.Thread(target=ends, daemon=True).start()
        return limit

    def drip(request: BaseHTTPRequestHandler) -> None:
        begins(request, head)
        for _ in range(40):
            request.wfile.write(b"X" if head else b" ")
            request.wfile.flush()
        dripped.set()
        request.rfile.read(1)  # until the connection is shut

    world.sources._connections = {"here": world.sources._connections["here"]}
    monkeypatch.setattr(http, "asyncio", SimpleNamespace(run=asyncio.run, timeout=timeout))
    server.whole = drip
    found = world.read()
    assert {found[name].fault.partition(" did not ")[2][:25] for name in ("bad", *WELL)} == {
        "finish its answer in time"
    }
    assert {counts(found, name) for name in ("bad", *WELL)} == {(16, 12)}
    (seconds,) = limits
    assert 0 < seconds <= 50
    threw(SOURCE)


@pytest.mark.nightly
@pytest.mark.parametrize("head", [True, False], ids=["head", "body"])
def test_an_answer_that_drips_costs_its_own_clusters_alone_and_in_time(
    head: bool, server: Server, world: World
) -> None:
    def drip(request: BaseHTTPRequestHandler) -> None:
        begins(request, head)
        for _ in range(40):
            request.wfile.write(b"X" if head else b" ")
            request.wfile.flush()
            time.sleep(0.25)

    world.limits(timedelta(seconds=1))
    world.sources._threads._patience = 2.0
    server.whole = drip
    began = time.monotonic()
    world.read()
    assert time.monotonic() - began < 9, "what drips would take ten seconds"
    costs_its_own_clusters_alone(server, world, "finish its answer in time")


def test_a_slow_prometheus_is_waited_for_once(server: Server, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that waited for it each time would see every other cluster's failure late."""
    aside, answers, waited = world.sources._threads, threading.Event(), list[list[str]]()
    wait = aside._wait

    def waits_for(names: Iterable[str]) -> None:
        waited.append([*names])
        wait(waited[-1])

    def waits(request: BaseHTTPRequestHandler) -> None:
        answers.wait()

    monkeypatch.setattr(aside, "_wait", waits_for)
    monkeypatch.setattr(aside, "_patience", 0.0)
    server.whole = waits
    try:
        world.read()
        assert "here" in waited.pop(0)
        monkeypatch.setattr(aside, "_patience", 300.0)  # whoever waited now would wait for ever
        wait_until(lambda: counts(world.read(), "south") == (16, 15), "the other one is read")
        for _ in range(20):
            assert counts(world.read(), "south") == (16, 15)
        assert "here" not in {name for names in waited for name in names}
    finally:
        answers.set()


@pytest.mark.parametrize("more", [{"warnings": ["some stores did not answer"]}])
def test_an_answer_in_part_is_none(server: Server, world: World, more: dict[str, Any]) -> None:
    """The missing part of an answer would look like lost hardware."""
    server.more = more
    server.rows = {"healthy": lambda rows: rows[:1]}
    found = world.read()
    assert counts(found, "west") == (16, 12)
    assert "answered in part" in found["west"].fault
    threw(SOURCE)


def test_ten_megabytes_of_series_are_read(server: Server, world: World) -> None:
    server.rows = {"healthy": lambda rows: rows + [series(f"c{n}", "8", "x" * 100) for n in range(50_000)]}
    assert counts(world.read(), "east") == (16, 15)
    TRIED["series of others beside ours"] += 50_000


def test_why_no_connection_was_made_is_shown() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/api/v1/query did not answer: .*Errno 111"):
        document(PrometheusConnection(url="http://127.0.0.1:1"), "up")


@pytest.mark.parametrize("token", ["first\nsecond", "first\x00second", "t\u00f6ken"])
def test_a_token_that_no_header_can_hold_is_neither_sent_nor_shown(token: str, server: Server, tmp_path: Path) -> None:
    requests: list[str] = []
    server.whole = lambda request: requests.append(request.path)
    file = tmp_path / "token"
    file.write_text(token)
    with pytest.raises(Unavailable, match=r"token has a character that an HTTP header cannot hold$"):
        document(PrometheusConnection(url=server.url, token_file=str(file)), "installed")
    assert requests == []


def test_the_machines_own_authorities_count_for_a_prometheus_and_for_no_receiver_of_notices(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notice's URL comes from a team, and the HTTP client's own list or SSL_CERT_FILE says whom to trust there."""
    here, other = (own_certificate(tmp_path / name) for name in ("here", "other"))
    (tmp_path / "authorities").mkdir()
    hashed = subprocess.run(
        ["openssl", "x509", "-hash", "-noout", "-in", here], check=True, capture_output=True, text=True
    )
    (tmp_path / "authorities" / f"{hashed.stdout.strip()}.0").write_bytes(here.read_bytes())
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "authorities"))
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secured.load_cert_chain(here, here.with_suffix(".key"))
    server.http.socket = secured.wrap_socket(server.http.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    assert document(PrometheusConnection(url=url), "installed")["status"] == "success"
    local = http.Reach(networks=http.networks_of("127.0.0.0/8"))
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        http.fetch(http.Asked("POST", httpx.URL(url)), local)


def own_certificate(path: Path) -> Path:
    """One for 127.0.0.1 that nobody else has signed, in `path`.pem, and its key beside it."""
    file = path.with_suffix(".pem")
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
    ]
    name = [f"/CN={path.name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, *name, "-keyout", path.with_suffix(".key"), "-out", file], check=True, capture_output=True)
    return file


def test_the_checks_of_a_bring_up_ask_the_prometheus_of_its_entry(server: Server, world: World) -> None:
    """The cluster is not in the fleet yet, so the ledger has no sample of it."""
    checks = OwnHealth(
        cannot, world.sources.read_islands, cannot, world.ledger.health, OutsideChecks(Allowed(RunnerSettings()))
    )

    def answer(kind: CheckKind, asked: str, connection: str = "here", **more: Any) -> tuple[Colour, str]:
        source = PrometheusSource(connection=connection, cluster=asked)
        found = checks.check(CheckOrder(cluster="new", name="a", kind=kind, prometheus=source, **more))
        return found.colour, found.said

    enough, all_of_them = Fraction(9, 10), Fraction(1)
    assert answer(CheckKind.HEALTHY, "east", share=enough) == (
        Colour.GREEN,
        "15 of 16 GPUs healthy (93.8 %); 90 % required",
    )
    assert answer(CheckKind.HEALTHY, "east", share=all_of_them)[0] is Colour.RED
    assert answer(CheckKind.CAPACITY, "east", gpus=17) == (Colour.RED, "16 GPUs installed, 17 required")
    assert answer(CheckKind.CAPACITY, "nobody", gpus=1) == (
        Colour.UNKNOWN,
        "Prometheus here has no series for nobody",
    )
    server.rows = {"healthy": but("-1")}
    colour, said = answer(CheckKind.HEALTHY, "bad", share=enough)
    assert (colour, said.startswith("Prometheus here has -1 for the healthy GPUs")) == (Colour.UNKNOWN, True), said
    assert answer(CheckKind.HEALTHY, "east", "elsewhere", share=enough)[1].startswith("this worker has no Prometheus")
    assert "new" not in world.ledger.health.read(["new"])


def cannot(cluster: str, source: object) -> Any:
    raise AssertionError(f"{cluster} is not asked of {source}")
