"""Canary secrets, a whole story with a real `backstop up`, and then every place where something could have been left.

The judge knows the secrets' texts, and nothing of how they are kept. Each is looked for as it is, and in what is
packed: Base64, zlib, and what the payload key opens. Where secrets have to stand (the folder of secrets, the keys' own)
is left out, by name.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from temporalio.client import Client

from client.connection import NAMESPACE
from client.encryption import Encrypted
from client.payload_keys import KeyRing
from tests.e2e.test_backup import ACCESS, Site
from tests.e2e.test_secrets import inside
from tests.e2e.test_telemetry import Receiver
from tests.encrypted import keys_of, payloads_in, ring_of
from tests.integration.notice_servers import Web, web_server
from tests.ports import free_port
from tests.tried import SAID
from workers.demo import CLOCKS

WORKING, FAILING, LOGIN = "CaNaRyWebhookTokenA1", "CaNaRyFailingTokenB2", "CaNaRyUrlPasswordC3"
MAIL, PROMETHEUS, BUILDKITE = "CaNaRyMailPasswordD4", "CaNaRyPrometheusE5", "CaNaRyBuildkiteF6"
PERSONAL = "CaNaRyPersonalTokenH8"
ANYHOW = "AReasonThatIsNoSecretX9"
"""It is looked for too, and must be found: else the search finds nothing."""
NAME, OTHER = "canary-1", "canary-2"
"""The second one's team is never told: its rollout waits."""


class Telemetry(Receiver):
    """Keeps all that it is sent, as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[bytes] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.raw.append(request.SerializeToString())
        return super().Export(request, context)


@contextmanager
def collector() -> Iterator[tuple[str, Telemetry]]:
    found = Telemetry()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", found
    server.stop(1).wait()


class Story:
    """A home with planted secrets, what people typed, and what they were shown."""

    def __init__(self, tmp_path: Path, web: Web, telemetry: str) -> None:
        self.tmp = tmp_path
        self.site = Site(tmp_path / "state")
        self.home = self.site.home
        self.shown: list[str] = []
        planted = self.home / "secrets"
        planted.mkdir(parents=True)
        here = f"127.0.0.1:{web.port}"
        for name, text in {
            "hook": f"webhook+http://{here}/yes/{WORKING}",
            "failing": f"webhook+http://{here}/no/{FAILING}",
            "login": f"json://robot:{LOGIN}@{here}/yes",
            "mail": f"mailto://robot:{MAIL}@127.0.0.1:{free_port()}?from=backstop@ops.example",
            "prometheus": PROMETHEUS,
            "buildkite": BUILDKITE,
        }.items():
            (planted / name).write_text(text + "\n")
        (self.home / "keys").mkdir()
        self.ring = ring_of(self.home / "keys", keys_of())
        self.payload_key = keys_text(self.home / "keys" / "payload.json")
        self.site.environment |= {
            "BACKSTOP_SECRETS": str(planted),
            "BACKSTOP_CONTACT_NETWORKS": "127.0.0.0/8",
            "BACKSTOP_MAIL_SERVER": "secret:mail",
            "BACKSTOP_PROMETHEUS": self._file("prometheus.yaml", connections={"fleet": prometheus(here)}),
            "BACKSTOP_RUNNERS": self._file("runners.yaml", buildkite=buildkite(here)),
            "BACKSTOP_TOKEN": PERSONAL,
            "BACKSTOP_CONSOLE_PORT": str(free_port()),
            "OTEL_EXPORTER_OTLP_ENDPOINT": telemetry,
        }

    def _file(self, name: str, **content: Any) -> str:
        (self.tmp / name).write_text(yaml.safe_dump(content))
        return str(self.tmp / name)

    def say(self, *words: str) -> str:
        self.shown.append(self.site.run(*words))
        return self.shown[-1]

    def try_to(self, *words: str) -> None:
        """Try it, and show the outcome."""
        try:
            self.say(*words)
        except AssertionError as error:
            self.shown.append(str(error))

    def until(self, stage: str) -> None:
        ends = time.monotonic() + 200
        while self.site.stages().get(NAME) != stage:
            assert time.monotonic() < ends, self.site.stages()
            time.sleep(1)

    def fleet(self, healthy: int) -> str:
        cluster = {
            "name": NAME,
            "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": healthy}],
            "quotas": [{"team": "research", "gpus": 345, "scheduled_gpus": 310}],
        }
        watched = {
            **cluster,
            "name": OTHER,
            "prometheus": {"connection": "fleet"},
            "quotas": [{"team": "evals", "gpus": 345, "scheduled_gpus": 310}],
        }
        contacts = ["secret:hook", "secret:failing", "secret:login", "log"]
        never = ["secret:gone", "a@team.example", "secret:failing"]
        return self._file(
            "fleet.yaml",
            policy=CLOCKS,
            clusters=[cluster, watched],
            teams=[{"name": "research", "contacts": contacts}, {"name": "evals", "contacts": never}],
        )


def prometheus(here: str) -> dict[str, str]:
    return {"url": f"http://{here}/prometheus", "token": "secret:prometheus"}


def buildkite(here: str) -> dict[str, Any]:
    return {
        "organization": "acme",
        "pipelines": ["burn-in"],
        "token": "secret:buildkite",
        "url": f"http://{here}/buildkite",
    }


def front_key(path: Path) -> list[bytes]:
    """Return the front key that `up` made: the file's text, and the 32 bytes that are the secret (RFC 8410)."""
    body = "".join(line for line in path.read_text().splitlines() if "-" not in line)
    return [body.encode(), base64.b64decode(body)[-32:]]


def keys_text(path: Path) -> str:
    return str(json.loads(path.read_text())["keys"][0]["key"])


def ticket_key(path: Path) -> list[bytes]:
    """The front's private key, which `backstop up` made, in the forms in which it could have been left anywhere."""
    body = "".join(line for line in path.read_text().splitlines() if "-----" not in line)
    private = base64.b64decode(body)[-32:]  # PKCS #8 of Ed25519 ends with it (RFC 8410, section 7)
    return [body.encode(), private, private.hex().encode(), base64.urlsafe_b64encode(private).rstrip(b"=")]


def told(story: Story, web: Web) -> None:
    """The story."""
    story.say("fleet", "import", story.fleet(319))
    story.say("launch", NAME, "--owner", "tpm", "--reason", ANYHOW)
    plan = json.loads(story.say("status", NAME, "--json"))["plan_hash"]
    story.say("approve", NAME, "--plan", plan)
    story.try_to("launch", OTHER, "--owner", "tpm", "--reason", ANYHOW)
    plan = json.loads(story.say("status", OTHER, "--json"))["plan_hash"]
    story.try_to("approve", OTHER, "--plan", str(plan))
    story.until("monitored")
    web.statuses["/no"] = 503
    story.try_to("fleet", "import", story.fleet(200))  # a third of it fails: a breach
    time.sleep(8)
    for words in (
        ("status", NAME),
        ("audit", NAME),
        ("audit", NAME, "--archive", "--json"),
        ("audit", NAME, "--verify"),
        ("report", "--weekly"),
        ("fleet", "show", "--json"),
        ("fleet", "export", str(story.tmp / "exported.yaml")),
        ("fleet", "export"),
        ("doctor",),
        ("doctor", "--json"),
        ("keys", "payload", "show", "--json"),
        ("backup", str(story.tmp / "backup")),
        ("why", "research", NAME),
        ("close", NAME, "--reason", ANYHOW),
    ):
        story.try_to(*words)


def told_through_the_front(story: Story) -> str:
    """The same home with an access file: a token is made, shown once, and used over HTTP. Answers with the token."""
    del story.site.environment["BACKSTOP_ACTOR"], story.site.environment["BACKSTOP_TOKEN"]
    access = story._file("access.yaml", **ACCESS)
    story.say("access", "import", access, "--reason", ANYHOW)
    made = ("access", "token", "new", "ci", "--owner", "user:site-lead", "--role", "operator", "--days", "2")
    token = story.site.run(*made).split()[0]
    url = f"http://127.0.0.1:{story.site.environment['BACKSTOP_CONSOLE_PORT']}"
    with_token = {"BACKSTOP_URL": url, "BACKSTOP_TOKEN": token}
    story.site.environment |= with_token
    assert "user:site-lead, proven (token)" in story.say("whoami")
    for line in ("status", f"status {NAME}", f"launch {NAME} --reason {ANYHOW}", "access show", "doctor"):
        story.try_to(*line.split())
    story.site.environment["BACKSTOP_TOKEN"] = f"{token}x"
    story.try_to("status")
    for name in with_token:
        del story.site.environment[name]
    for line in ("access token list", "audit (access)", f"backup {story.tmp / 'later'}"):
        story.say(*line.split())
    return token


async def histories(address: str, ring: KeyRing) -> tuple[list[bytes], int]:
    """Every event of every run as it came and decrypted; how many events."""
    client = await Client.connect(address, namespace=NAMESPACE)
    found, count = list[bytes](), 0
    async for run in client.list_workflows():
        history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        for event in history.events:
            count += 1
            found.append(event.SerializeToString())
            opened = await Encrypted(ring).decode(list(payloads_in(event)))
            found += [payload.data for payload in opened]
    return found, count


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(580)
def test_no_canary_is_found_anywhere(tmp_path: Path) -> None:
    with web_server() as web, collector() as (endpoint, telemetry):
        story = Story(tmp_path, web, endpoint)
        with story.site.up(signal.SIGTERM):
            told(story, web)
            token = told_through_the_front(story)
            address = json.loads((story.home / "temporal.json").read_text())["address"]
            events, count = asyncio.run(histories(address, story.ring))
        assert web.posts(f"/yes/{WORKING}"), "the working webhook was told"
        assert web.posts(f"/no/{FAILING}"), "the failing one was tried"
    files = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and not {"secrets", "keys"} & set(path.relative_to(tmp_path).parts)
    }
    places = {
        **files,
        **{f"what command {number} showed": text.encode() for number, text in enumerate(story.shown)},
        **{f"telemetry {number}": raw for number, raw in enumerate(telemetry.raw)},
    }
    key = base64.b64decode(story.payload_key)
    canaries = [c.encode() for c in (WORKING, FAILING, LOGIN, MAIL, PROMETHEUS, BUILDKITE, PERSONAL, token)]
    canaries += [story.payload_key.encode(), key, key.hex().encode(), *front_key(story.home / "keys" / "front.pem")]
    packed = {place: list(inside(content, 2)) for place, content in places.items()}
    packed |= {f"event {number}": list(inside(raw, 2)) for number, raw in enumerate(events)}
    found = {
        (place, canary) for place, contents in packed.items() for c in contents for canary in canaries if canary in c
    }
    assert found == set()
    anyhow = {place for place, contents in packed.items() if any(ANYHOW.encode() in each for each in contents)}
    assert {"state/ledger.db"} & anyhow, "the search finds what is there"
    assert any(place.startswith("event") for place in anyhow), "in what the key opens, too"
    assert any(name.endswith("temporal.db") for name in files)
    assert telemetry.spans, "spans came"
    assert telemetry.metrics, "metrics came"
    SAID["canaries"] = (
        f"{len(canaries)} secrets looked for in {len(files)} files, {count} events of histories (raw and "
        f"decoded), {len(story.shown)} commands' answers, {len(telemetry.raw)} exports of spans and metrics: found 0"
    )
