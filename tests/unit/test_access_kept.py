"""After a new file came into force, a front goes by the earlier one for as long as the sentence about it says."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client.operations import Operation
from models.access.access_versions import AccessStands, AccessVersion, HowImported, standing_sentence
from models.access.decision import Permitted
from tests.unit.access_world import access, at_provider, grant
from tests.unit.cli_fakes import NOON
from web import ledger_rights as rights
from web.temporal_connection import Doors

OLD, NEW = access(grant("user:sre", "viewer", "operator")), access()


def version(number: int, file: Any) -> AccessVersion:
    return AccessVersion(version=number, hash=file.hash, file=file, by="user:tpm", at=NOON, how=HowImported.FIRST)


class Front:
    """A front at a clock of ours, whose ledger gets the second file at once after the first was read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.stands = 1000.0, version(1, OLD)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        self.rights = rights.LedgerRights(cast("Doors", SimpleNamespace(door_of=self._door)))

    async def _door(self, _: object) -> Any:
        async def ask(_: object) -> AccessStands:
            return AccessStands(version=self.stands)

        return SimpleNamespace(ask=ask)

    async def may(self, command: str) -> bool:
        who = at_provider(OLD, "sre")
        operation = cast("Operation", SimpleNamespace(command=command))
        judged = await self.rights.judge(who, operation, command, {"cluster": "h100-a"})
        return isinstance(judged.decision, Permitted)


@pytest.mark.parametrize(("command", "kind"), [("read.status", "to reading"), ("rollout.pause", "to commands")])
async def test_a_front_goes_by_a_new_file_when_the_sentence_says_and_no_sooner(
    command: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = standing_sentence(version(2, NEW))
    match = re.search(rf"{kind} within (\d+)s", sentence)
    assert match is not None
    within = int(match[1])
    front = Front(monkeypatch)
    assert await front.may(command)
    front.stands = version(2, NEW)
    front.now += within
    assert await front.may(command), "until then by the file before"
    front.now += 0.01
    assert not await front.may(command)


async def test_by_the_file_alone_no_worker_is_asked_about_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Fleet page has twenty buttons: each would ask a worker who launched, and who owns what."""
    front, asked = Front(monkeypatch), list[str]()

    async def door_of(_: object) -> Any:
        async def ask(question: object) -> Any:
            asked.append(type(question).__name__)
            return AccessStands(version=front.stands) if len(asked) == 1 else question.target  # type: ignore[attr-defined]

        return SimpleNamespace(ask=ask)

    front.rights = rights.LedgerRights(cast("Doors", SimpleNamespace(door_of=door_of)))
    operation = cast("Operation", SimpleNamespace(command="rollout.approve"))
    for facts, more in ((False, []), (True, ["AimOf"])):
        await front.rights.judge(
            at_provider(OLD, "sre"), operation, "rollout.approve", {"cluster": "h100-a"}, facts=facts
        )
        assert asked == ["AccessNow", *more]
