"""Entries and notices that wait to be sent: their keys, and what is left out when too many wait."""

from __future__ import annotations

import random
import zlib
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow

from models.audit_chain import AuditKind
from models.lifecycle.outgoing import MOST_BYTES
from models.notices import Notice, NoticeKind
from models.requests.messages import RequestInput
from models.temporal_names import TellAnswer
from tests.unit.bringup_world import BringupWorld
from tests.unit.test_cli_request import asked
from workflows.quota_request import QuotaRequest

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def test_entries_and_notices_are_numbered_together_and_no_key_comes_twice() -> None:
    bringup = BringupWorld().b.but(outbox=(), mail=(), serial=7)
    bringup = (
        bringup.record(AuditKind.GUARD, "one", NOON)
        .notify_owner("two")
        .record(AuditKind.GUARD, "three", NOON)
        .notify_owner("four")
    )
    assert [entry.key for entry in bringup.outbox] == ["bringup/h100-new/1/000008", "bringup/h100-new/1/000010"]
    assert [notice.key for notice in bringup.mail] == [
        "bringup/h100-new/1/000009/told",
        "bringup/h100-new/1/000011/told",
    ]


def test_a_notice_that_nobody_takes_leaves_the_mail_and_the_archive_says_why() -> None:
    bringup = BringupWorld().b.but(outbox=(), mail=()).notify_owner("one").notify_owner("two").notify_owner("three")
    first, second, third = bringup.mail
    answer = TellAnswer(delivered={first.key: ()}, failed={third.key: "busy"}, refused={second.key: "no such channel"})
    after = bringup.apply_delivery(answer, NOON)
    assert after.mail == (third,)
    assert [(e.text, e.data["notice"]) for e in after.outbox] == [
        ("Backstop could not notify tpm: no such channel", second.key)
    ]


def large_mail(rng: random.Random) -> tuple[Notice, ...]:
    fields: dict[str, Any] = {"kind": NoticeKind.BRINGUP, "cluster": "c", "audience": "tpm", "owner": "tpm"}
    return tuple(Notice(key=f"n{n}", detail=rng.randbytes(900).hex(), **fields) for n in range(4000))


def test_a_bringup_that_could_tell_nobody_for_weeks_fits_into_its_next_run_and_says_what_is_left_out() -> None:
    rng = random.Random(1)
    bringup = BringupWorld().b
    entries = tuple(
        bringup.outbox[0].model_copy(update={"key": f"k{n}", "text": rng.randbytes(900).hex()}) for n in range(4000)
    )
    mail = large_mail(rng)
    full = bringup.but(outbox=entries, mail=mail)
    carried = full.fit(NOON)
    assert len(zlib.compress(carried.model_dump_json().encode(), 1)) < 2**21 < len(full.model_dump_json()) / 2
    assert MOST_BYTES < 2**21, "Temporal takes 2 MiB"
    archived = len(carried.outbox) - 2
    assert carried.outbox[-2].text.startswith(f"{len(mail) - len(carried.mail):,} notices were given up")
    assert carried.outbox[-1].text.startswith(f"{len(entries) - archived:,} entries are left out before this one")
    assert carried.outbox[:50] == entries[:50], "these may be on their way"
    assert (carried.mail[-1], carried.outbox[-3]) == (mail[-1], entries[-1]), "the newest stay"


def test_the_next_run_of_a_request_begins_with_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[RequestInput] = []
    suggested = SimpleNamespace(is_continue_as_new_suggested=lambda: True)
    for name, value in (("info", suggested), ("all_handlers_finished", True), ("now", NOON)):
        monkeypatch.setattr(workflow, name, lambda value=value: value)
    monkeypatch.setattr(workflow, "patched", lambda _: True)
    monkeypatch.setattr(workflow, "continue_as_new", begun.append)
    state = asked().but(outbox=(), mail=large_mail(random.Random(1)))
    start = RequestInput(ask=state.ask, state=state)
    QuotaRequest(start)._leave(start)
    (then,) = begun
    assert then.state is not None
    assert 0 < len(then.state.mail) < len(state.mail)
    assert [e.text.split(" were ")[0] for e in then.state.outbox] == [
        f"request q-1: {len(state.mail) - len(then.state.mail):,} notices"
    ]
