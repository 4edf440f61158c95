"""A cluster of 5,000 quotas: its state alone is above what Temporal takes in one payload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from client.compression import COMPRESS_FROM, ENCODING
from client.converter import data_converter
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout
from tests.e2e.world import World, cluster, eventually, fresh, team, world_of

QUOTAS = 5_000
SLACK = 100
MOST_BYTES = 2 * 1024 * 1024
PATIENT = 180.0


def payloads_of(event: HistoryEvent) -> list[bytes]:
    """The data of every payload in an event, as it stands in the history."""
    found: list[bytes] = []

    def walk(message: object) -> None:
        for field, value in message.ListFields():  # type: ignore[attr-defined]
            if field.message_type is None:
                continue
            repeated = field.is_repeated and not field.message_type.GetOptions().map_entry
            for part in value if repeated else value.values() if field.is_repeated else [value]:
                if field.message_type.full_name == "temporal.api.common.v1.Payload":
                    found.append(part.SerializeToString())
                elif hasattr(part, "ListFields"):
                    walk(part)

    walk(event)
    return found


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_a_rollout_of_five_thousand_quotas(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> None:
    # A tenth of a second, as in other stories, would be most of the machine.
    async with world_of(temporal, sqlite_ledger_url, tmp_path, watch_seconds=3) as world:
        world.shaky = True  # where the machine is busy, an answer about 5,000 teams may come too late
        await played(world)


async def played(world: World) -> None:
    name = fresh("large")
    # The cut lands on the hundred teams that leave capacity unscheduled: who is told is not what is tested here.
    large, small = 60, 10
    quotas = [team(f"big-{k:02}", large, busy=5) for k in range(SLACK)]
    quotas += [team(f"team-{k:04}", small, islands=["x"] if k % 3 == 0 else None) for k in range(QUOTAS - SLACK)]
    total = large * SLACK + small * (QUOTAS - SLACK)
    half = total // 2
    await world.fleet(cluster(name, {"x": (half, half), "y": (half, half)}, quotas, buffer=0.1))
    baseline = world.sql.gpus(name)

    async def reached(stage: Stage) -> None:
        """Read the stage by SQL: thirty statuses of 5,000 teams a second would use most of the machine."""
        await eventually(lambda: world.sql.row("rollouts", id=f"{name}/1")["stage"] == stage, stage, PATIENT)

    answer = await world.launch(name)
    assert answer.plan is not None
    assert len(answer.plan.quotas) == QUOTAS
    await world.approve(name)
    await reached(Stage.MONITORED)
    assert sum(world.sql.gpus(name).values()) == answer.plan.ceiling_gpus == total * 9 // 10
    assert sum(t.quota_gpus for t in (await world.status(name)).teams) == answer.plan.ceiling_gpus
    await world.say(name, Command.ABORT)
    await reached(Stage.ABORTED)
    await world.ended(name)
    assert world.sql.gpus(name) == baseline
    assert world.sql.broken_links(name) == []
    assert [r.text for r in await world.tpm.audit(name) if r.text.startswith("abort")] == ["abort by tpm"]

    state = Rollout.model_validate(await world.state(name))
    assert len(state.model_dump_json()) > MOST_BYTES, "this proves nothing any more: a larger cluster is needed"
    history = await world.handle(name).fetch_history()
    sizes = [len(data) for event in history.events for data in payloads_of(event)]
    kinds = Counter("compressed" if ENCODING in data else "plain" for e in history.events for data in payloads_of(e))
    assert kinds["compressed"] > 10
    assert kinds["plain"] > 20
    assert max(sizes) < MOST_BYTES / 4
    print(f"\n{QUOTAS} quotas: state {len(state.model_dump_json()):,} bytes, largest payload {max(sizes):,}, ", end="")
    print(f"history {len(history.events)} events, {sum(sizes):,} bytes")


async def test_small_values_stay_readable_and_large_ones_come_back() -> None:
    converter: DataConverter = data_converter
    (small,) = await converter.encode(["a" * (COMPRESS_FROM - 200)])
    assert b"aaaa" in small.data
    large = [{"team": f"team-{n}", "gpus": n} for n in range(20_000)]
    (encoded,) = await converter.encode([large])
    assert encoded.metadata["encoding"] == ENCODING
    assert len(encoded.data) < len(str(large)) / 5
    assert await converter.decode([encoded], [list[dict[str, object]]]) == [large]


@pytest.mark.parametrize("spoil", [lambda data: data[:-5], lambda data: b"zip" + data, lambda data: b""])
async def test_a_payload_that_does_not_unfold_is_refused_like_other_nonsense(spoil: Callable[[bytes], bytes]) -> None:
    """The converter refuses it: an error in the codec would fail the workflow task that carries it, for ever."""
    (large,) = await data_converter.encode(["b" * COMPRESS_FROM * 4])
    assert large.metadata["encoding"] == ENCODING
    large.data = spoil(large.data)
    with pytest.raises(ApplicationError, match=r"the encoding is .*binary/zlib"):
        await data_converter.decode([large], [CommandRequest])
