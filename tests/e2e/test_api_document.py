"""The published document, thrown at a real front by schemathesis: nothing that it allows or forbids makes it fail."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.access.principals import Principal, Proof
from tests.e2e.front_world import front_of
from tests.e2e.world import World, fresh, worked_case
from tests.tried import SAID, examples
from web.limits import Rate
from web.settings import Address

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]
TOKEN = "whoever"
NOT_HERE = {"/api/v1/questions/describe_slurm"}
"""What asks a program that this machine may not have: 503 is its honest answer."""


class Anybody:
    """web.callers.Tokens of one who may do everything."""

    async def principal(self, token: str) -> Principal | None:
        return Principal(name="user:tpm", human="tpm", proof=Proof.TOKEN, how="token of a test")


@pytest.fixture
async def front(world: World) -> AsyncIterator[str]:
    await world.fleet(worked_case(fresh("thrown-at")))
    listen, rate = Address("127.0.0.1", 0), Rate(burst=10**9)
    async with front_of(world.client, None, listen=listen, tokens=(Anybody(),), rate=rate) as (_, where):
        yield where[0]


async def test_whatever_is_thrown_at_the_api_is_answered_or_refused(front: str, tmp_path: Path) -> None:
    report = tmp_path / "har.json"
    line = [
        *(str(Path(sys.executable).with_name("st")), "run", f"{front}/api/v1/openapi.json"),
        *("--header", f"Authorization: Bearer {TOKEN}", "--checks", "not_a_server_error", "--phases", "fuzzing"),
        *("--mode", "all", "--max-examples", str(examples(12)), "--seed", "7", "--generation-database", "none"),
        *("--continue-on-failure", "--request-timeout", "60", "--no-color", "--report-har-path", str(report)),
    ]
    thrown = await asyncio.create_subprocess_exec(*line, cwd=tmp_path, stdout=-1, stderr=-2)
    told, _ = await thrown.communicate()
    entries = json.loads(report.read_text())["log"]["entries"]
    answers = [(e["request"]["url"].partition("?")[0].removeprefix(front), e["response"]["status"]) for e in entries]
    failed = {(path, status) for path, status in answers if status >= 500 and path not in NOT_HERE}
    assert failed == set(), told.decode()
    assert len({path for path, _ in answers}) > 60, told.decode()
    assert {200, 422} <= {status for _, status in answers}, "some are taken, and some are refused"
    kinds = ", ".join(f"{count} times {status}" for status, count in sorted(Counter(s for _, s in answers).items()))
    SAID["schemathesis"] = f"{len(answers)} requests by schemathesis: {kinds}"
