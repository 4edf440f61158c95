"""A worker's ways to an API server: the account of its pod, a program that prints tokens, and its own settings."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from activities.adapters.kubernetes import api
from activities.adapters.kubernetes.api import NODES, ApiServer, KubernetesConnection
from client.doctor import health_source_checks
from models.errors import BadInput, Unavailable
from models.questions import LedgerCheck
from tests.kubernetes.emulator import NODES as NODE_OBJECTS
from tests.kubernetes.emulator import Cluster, node, running
from workers.settings import load_settings

HERE = "127.0.0.1"


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of this address, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    begins = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HERE))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path, both = folder / "ca.crt", folder / "server.pem"
    path.write_bytes(signed.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    both.write_bytes(private + path.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return path, context


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Cluster]]:
    """The service account's folder as the kubelet mounts it, and the API server of the pod's cluster."""
    _, context = certificate(tmp_path)
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("backstop")
    with running(context) as cluster:
        host, _, port = cluster.url.rstrip("/").rpartition("//")[2].partition(":")
        monkeypatch.setattr(api, "_SERVICE_ACCOUNT", str(tmp_path))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        cluster.put(NODE_OBJECTS, node("n1"))
        yield tmp_path, cluster


def takes(cluster: Cluster, *tokens: str) -> None:
    cluster.on_loop(lambda emulator: (emulator.tokens.clear(), emulator.tokens.update(tokens)))


async def names(server: ApiServer) -> list[str]:
    return [raw["metadata"]["name"] for raw in (await server.page(NODES, None)).items]


async def test_in_a_pod_its_service_account_is_enough_and_a_new_token_is_read(pod: tuple[Path, Cluster]) -> None:
    folder, cluster = pod
    assert cluster.url.startswith("https://")
    takes(cluster, "first")
    server = ApiServer("local", KubernetesConnection())
    assert await names(server) == ["n1"]
    (folder / "token").write_text("second")  # as the kubelet does, once an hour
    takes(cluster, "second")
    assert await names(server) == ["n1"]


async def test_a_server_with_another_certificate_gets_no_token(pod: tuple[Path, Cluster], tmp_path: Path) -> None:
    folder, cluster = pod
    other = tmp_path / "other"
    other.mkdir()
    path, _ = certificate(other)
    (folder / "ca.crt").write_bytes(path.read_bytes())
    with pytest.raises(Unavailable, match=r"no connection: .*certificate verify failed"):
        await names(ApiServer("local", KubernetesConnection()))
    assert cluster.emulator.asked == []


async def test_a_worker_in_no_pod_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_SERVICE_ACCOUNT", str(tmp_path / "none"))
    with pytest.raises(Unavailable) as refusal:
        await names(ApiServer("local", KubernetesConnection()))
    assert refusal.value.message == (
        f"it names no kubeconfig, and this worker runs in no pod: {tmp_path}/none/token is missing"
    )


def with_program(folder: Path, server: Cluster, script: str) -> ApiServer:
    """A kubeconfig whose user is what a program prints."""
    program = folder / "credentials"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    config = server.kubeconfig()
    runs = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "args": ["get", "token"]}
    config["users"] = [{"name": "backstop", "user": {"exec": {**runs, "env": [{"name": "KIND", "value": "Exec"}]}}}]
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return ApiServer("east", KubernetesConnection(kubeconfig=str(path)))


PRINTS = """[ "$1 $2" = "get token" ] || exit 3
echo "{\\"kind\\": \\"${KIND}Credential\\", \\"status\\": {\\"token\\": \\"$(cat TOKEN)\\"}}" """


async def test_a_program_of_the_kubeconfig_prints_the_token_and_runs_again_when_it_is_refused(
    server: Cluster, tmp_path: Path
) -> None:
    server.put(NODE_OBJECTS, node("n1"))
    (tmp_path / "token").write_text("first")
    takes(server, "first")
    connection = with_program(tmp_path, server, PRINTS.replace("TOKEN", str(tmp_path / "token")))
    assert await names(connection) == ["n1"]
    (tmp_path / "token").write_text("second")
    takes(server, "second")
    assert await names(connection) == ["n1"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 1", "its credentials cannot be used: "),
        ("echo you must log in", "its credentials cannot be used: "),
        ("echo '{}'", "its credentials cannot be used: "),
        ("echo '[]'", "its credentials cannot be used: "),
        ("""echo '{"status": {"token": "old"}}'""", "(401): 'Unauthorized' (docs/kubernetes.md)"),
    ],
)
@pytest.mark.parametrize("when", ["at first", "after its token is refused"])
async def test_a_program_that_fails_is_a_sentence(
    server: Cluster, tmp_path: Path, script: str, why: str, when: str
) -> None:
    server.put(NODE_OBJECTS, node("n1"))
    takes(server, "first")
    connection = with_program(tmp_path, server, """echo '{"status": {"token": "first"}}'""")
    if when != "at first":
        assert await names(connection) == ["n1"]
        takes(server, "second")
    await asyncio.to_thread((tmp_path / "credentials").write_text, f"#!/bin/sh\n{script}\n")
    with pytest.raises(Unavailable) as refusal:
        await names(connection)
    assert why in refusal.value.message
    assert "\n" not in refusal.value.message


def test_doctor_has_a_line_for_each_cluster_that_answers_badly_and_one_for_all_that_do_well() -> None:
    def lines(**answers: str) -> list[tuple[bool, str]]:
        checks = health_source_checks(LedgerCheck(open_rollouts=0, kubernetes=answers))
        return [(check.ok, check.text) for check in checks if check.name == "kubernetes"]

    assert lines() == []
    assert lines(east="") == [(True, "reports the health of 1 cluster")]
    assert lines(east="", west="") == [(True, "reports the health of 2 clusters")]
    refused = "the worker may not list and watch nodes (403): Forbidden"
    assert lines(east="", west=refused, south="no answer") == [(False, "south: no answer"), (False, f"west: {refused}")]


FILES = [
    ("connections: {east: {kubeconfg: /etc/east}}", "connections.east.kubeconfg"),
    ("connections: {east: {kubeconfig: east.yaml}}", "connections.east.kubeconfig must be an absolute path, not 'east"),
    ("connections: {east: {timeout: 5m}}", "connections.east.timeout"),
    ("connections: {east: {timeout: soon}}", "connections.east.timeout"),
    ("connections: [east]", "connections"),
    ("connection: {}", "connection"),
    ("- connections", "connections"),
    ("connections: {east: {}", "line 2: not valid YAML"),
    ("", "connections"),
]


@pytest.mark.parametrize(("text", "named"), FILES)
def test_a_bad_file_of_connections_is_one_sentence_with_file_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: str
) -> None:
    path = tmp_path / "kubernetes.yaml"
    path.write_text(text)
    monkeypatch.setenv("BACKSTOP_KUBERNETES", str(path))
    with pytest.raises(BadInput) as refusal:
        load_settings()
    assert named in refusal.value.message
    assert refusal.value.message.startswith(str(path))
    assert "\n" not in refusal.value.message


def test_a_worker_with_a_bad_file_says_so_and_ends_with_2(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.yaml"
    given = {**os.environ, "BACKSTOP_HOME": str(tmp_path), "BACKSTOP_KUBERNETES": str(missing)}
    done = subprocess.run(
        [sys.executable, "-m", "workers.main"], env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("backstop: ")
    assert str(missing) in line
