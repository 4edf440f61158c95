"""The embedded server, really started: it survives its own death, and says clearly why it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from client.connection import NAMESPACE
from models.errors import Refusal, Unavailable
from models.temporal_names import SEARCH_ATTRIBUTES
from tests.waiting import PATIENCE, eventually
from workers import embedded_temporal as embedded
from workers.embedded_temporal import RETENTION, EmbeddedTemporal

QUEUE = "embedded-test"


@workflow.defn
class Waiter:
    """Ends when a timer rings after it was told to, so that it needs the server's timers and its signals."""

    def __init__(self) -> None:
        self.told = False

    @workflow.signal
    def go_on(self) -> None:
        self.told = True

    @workflow.run
    async def run(self, name: str) -> str:
        await workflow.wait_condition(lambda: self.told)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: False, timeout=0.5)
        return f"{name} went on"


def waiter_worker(client: Client) -> Worker:
    runner = UnsandboxedWorkflowRunner()
    return Worker(client, task_queue=QUEUE, workflows=[Waiter], workflow_runner=runner, debug_mode=True)


async def test_a_workflow_outlives_the_server_that_accepted_it(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        client = await Client.connect(server.address, namespace=NAMESPACE)
        handle = await client.start_workflow(Waiter.run, "rollout", id="w", task_queue=QUEUE)
        os.kill(server.pid, signal.SIGKILL)
        assert await server.wait() == -signal.SIGKILL

        await server.start()

        client = await Client.connect(server.address, namespace=NAMESPACE)
        handle = client.get_workflow_handle_for(Waiter.run, handle.id)
        async with waiter_worker(client):
            await handle.signal(Waiter.go_on)
            assert await asyncio.wait_for(handle.result(), PATIENCE) == "rollout went on"


def open_to_others(folder: Path) -> set[int]:
    return {p.stat().st_mode & 0o077 for p in folder.glob("temporal.db*")}


async def test_state_is_kept_by_a_stop(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, None, None) as first:
        client = await Client.connect(first.address, namespace=NAMESPACE)
        await client.start_workflow(Waiter.run, "rollout", id="w", task_queue=QUEUE)
    async with EmbeddedTemporal(tmp_path, None, None) as second:
        client = await Client.connect(second.address, namespace=NAMESPACE)
        assert (await client.get_workflow_handle("w").describe()).id == "w"
    assert open_to_others(tmp_path) == {0}


async def test_the_namespace_is_ready_for_rollouts(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        client = await Client.connect(server.address, namespace=NAMESPACE)
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=NAMESPACE))
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
    assert set(SEARCH_ATTRIBUTES) <= set(known.custom_attributes)
    assert described.config.workflow_execution_retention_ttl.ToTimedelta() == RETENTION


async def test_files_of_an_earlier_version_get_the_attributes_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SEARCH_ATTRIBUTES", {"BackstopCluster": "Keyword"})
    async with EmbeddedTemporal(tmp_path, None, None):
        pass
    monkeypatch.undo()
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        client = await Client.connect(server.address, namespace=NAMESPACE)
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=NAMESPACE))
    assert set(SEARCH_ATTRIBUTES) <= set(known.custom_attributes)


async def test_ctrl_c_reaches_us_and_not_the_server(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        assert os.getsid(server.pid) == server.pid != os.getsid(0)


async def test_the_ui_answers_where_it_is_said_to(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        host, port = server.ui_url.removeprefix("http://").split(":")

        async def answers() -> bool:
            return (await http_status(host, int(port))).startswith("HTTP/1.1 200")

        await eventually(answers, "the UI answers")


async def http_status(host: str, port: int) -> str:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return "refused"
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    status = (await reader.readline()).decode()
    writer.close()
    return status


@pytest.mark.parametrize(
    ("on_taken_port", "option"),
    [
        (lambda path, port: EmbeddedTemporal(path, port, None), r"--port PORT \(or BACKSTOP_PORT\)"),
        (lambda path, port: EmbeddedTemporal(path, None, port), r"--ui-port PORT \(or BACKSTOP_UI_PORT\)"),
    ],
    ids=["port", "ui-port"],
)
async def test_a_taken_port_is_named(
    tmp_path: Path, on_taken_port: Callable[[Path, int], EmbeddedTemporal], option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Refusal, match=f"port {port} .* is in use: choose another with {option}"):
            await on_taken_port(tmp_path, port).start()


async def test_a_free_port_that_was_lost_is_chosen_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporal panics then: the reason stands above a trace that is longer than what we show of its log."""
    real, lost = embedded.temporal_binary(), tmp_path / "lost"
    unlucky = tmp_path / "temporal"
    unlucky.write_text(
        f'#!/bin/sh\n[ -e {lost} ] && exec {real} "$@"\ntouch {lost}\n'
        "echo 'listen tcp 127.0.0.1:44563: bind: address already in use'\nseq 100\nexit 2\n"
    )
    unlucky.chmod(0o755)
    monkeypatch.setattr(embedded, "temporal_binary", lambda: str(unlucky))
    async with EmbeddedTemporal(tmp_path / "home", None, None) as server:
        await Client.connect(server.address, namespace=NAMESPACE)
    assert lost.exists()


async def test_a_free_port_that_somebody_else_took_first_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = embedded._usable_ports
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken: int = other.getsockname()[1]
        too_late = iter([(look(None, None)[0], taken)])
        monkeypatch.setattr(embedded, "_usable_ports", lambda *wanted: next(too_late, None) or look(*wanted))
        async with EmbeddedTemporal(tmp_path, None, None) as server:
            assert server.ui_url != f"http://127.0.0.1:{taken}"
    assert next(too_late, None) is None


async def test_a_second_server_on_the_same_files_is_refused_and_the_first_one_named(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, None, None) as first:
        with pytest.raises(Refusal, match=f"process {first.pid}"):
            await EmbeddedTemporal(tmp_path, None, None).start()


async def test_a_server_that_dies_while_starting_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "temporal.db").write_text("no database, but words " * 100)
    server = EmbeddedTemporal(tmp_path, None, None)
    with pytest.raises(Unavailable, match=r"ended with code 1 (?s:.*)not a database"):
        await server.start()


async def test_stop_ends_a_server_that_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_STOP_SECONDS", 0.5)
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        os.kill(server.pid, signal.SIGSTOP)
        await server.stop()
        assert await server.wait() == -signal.SIGKILL


async def test_a_cancel_while_it_is_being_started_leaves_no_server_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C: the process is there, and whoever started it has not heard of it yet."""
    spawn, begun, go_on = asyncio.create_subprocess_exec, list[asyncio.subprocess.Process](), asyncio.Event()

    async def slow(*words: Any, **options: Any) -> asyncio.subprocess.Process:
        begun.append(await spawn(*words, **options))
        await go_on.wait()
        return begun[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    starting = asyncio.ensure_future(EmbeddedTemporal(tmp_path, None, None).start())
    await eventually(lambda: bool(begun), "the process is there")
    starting.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    try:
        assert begun[0].returncode is not None
    finally:
        if begun[0].returncode is None:
            begun[0].kill()


async def test_stopping_twice_or_before_a_start_does_nothing(tmp_path: Path) -> None:
    server = EmbeddedTemporal(tmp_path, None, None)
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()


async def test_free_ports_are_none_that_the_server_may_take_for_its_inner_services(tmp_path: Path) -> None:
    """The server asks Linux for free ports before it binds ours, and once failed because it got the same port."""
    with socket.create_server(("127.0.0.1", 0)) as by_linux:
        first_by_itself = min(32_768, by_linux.getsockname()[1])
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        ports = [int(url.rpartition(":")[2]) for url in (server.address, server.ui_url)]
    assert len(set(ports)) == 2
    assert all(1024 < port < first_by_itself for port in ports)
