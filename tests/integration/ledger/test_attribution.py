"""Attribution on both databases: it equals a reading of the archive from its beginning, and reads few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from activities.adapters.ledger.facade import Ledger
from activities.desk.speaker import speak_as
from activities.ports.access import OpenOne
from activities.tickets.ticket_rights import Admission
from activities.tickets.warrants import Warrants
from models.access.decision import Target
from models.access.principals import Principal, Proof
from models.access.warrants import Warrant
from models.audit_chain import AuditEntry, AuditKind, Signature
from models.cluster.import_outcome import ImportTerms
from models.fleet.state import BREAKER, FLEET, FleetRollout, Pace
from models.lifecycle.holds import HoldKind
from tests.integration.ledger.world import CLUSTER, NOW, fleet, open_rollout, stage

ANA, BO = "user:ana", "user:bo"


@contextmanager
def statements() -> Iterator[list[str]]:
    found: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            found.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield found
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


def entry(key: str, cluster: str = CLUSTER, *, minutes: int = 0, actor: str = ANA, **more: Any) -> AuditEntry:
    at, kind = NOW + timedelta(minutes=minutes), more.pop("kind", AuditKind.COMMAND)
    return AuditEntry(key=key, cluster=cluster, at=at, kind=kind, actor=actor, text="t", **more)


def imports(ledger: Ledger, who: str, minutes: int, document: dict[str, Any]) -> None:
    import_id = f"by {who} at {minutes}"
    stage(ledger, document, import_id)
    with speak_as(proven(who)):
        ledger.fleet.take_import(import_id, 2, ImportTerms(), who, NOW + timedelta(minutes=minutes))


def proven(who: str) -> Principal:
    return Principal(name=who, proof=Proof.OIDC)


def archived(ledger: Ledger, entries: Sequence[AuditEntry]) -> None:
    """Archive the entries in this order, each as spoken and proven by its actor."""
    for one in entries:
        with speak_as(proven(one.actor)):
            ledger.registry.archive([one])


def approved(ledger: Ledger, subject: str, minutes: int, command: str = "rollout.approve") -> None:
    sre = Principal(name="user:sre", human="user:sre", proof=Proof.OIDC)
    given: dict[str, Any] = {"workflow": "w", "ticket": "a.b.c", "update_id": "u", "principal": sre}
    at = NOW + timedelta(minutes=minutes)
    nonce = f"{subject} {command} {minutes}"
    ledger.warrants.admit(Warrant(nonce=nonce, command=command, subject=subject, admitted_at=at, **given))


def test_who_launched_it_is_found_by_the_key_of_its_first_entry(ledger: Ledger) -> None:
    launch = {"command": "launch"}
    archived(
        ledger,
        [
            *(entry(f"r-{n}/000001", actor=f"user:{n}", data=launch) for n in range(50)),
            *(entry(f"r-7/{n:06d}", data={"command": "pause"}) for n in range(2, 300)),
            entry("r-x/000001", data={"command": "pause"}),
            entry("f-1/000001", FLEET, actor=BO, data=launch),
            entry("f-2/000001", FLEET, actor=ANA, data=launch),
            entry("f-2/000002", FLEET, data={"command": "approve"}),
        ],
    )
    attribution = ledger.attribution
    with statements() as asked:
        assert attribution.read_launcher("r-7") == "user:7"
    assert len(asked) == 1
    assert (
        attribution.read_launcher("r-x"),
        attribution.read_launcher("r-none"),
        attribution.read_launcher("f-1"),
    ) == ("", "", BO)
    assert (attribution.newest_fleet(), attribution.newest_fleet(but="f-2"), attribution.newest_fleet(but="f-9")) == (
        "f-2",
        "f-1",
        "f-2",
    )


def test_the_open_rollout_and_one_whose_reservation_stands(ledger: Ledger) -> None:
    assert ledger.attribution.open_one(CLUSTER) is None
    open_rollout(ledger, fleet="f-1")
    with statements() as asked:
        assert ledger.attribution.open_one(CLUSTER) == OpenOne("r-1", "f-1", "planned")
    assert len(asked) == 1
    assert ledger.attribution.open_one("beta") is None
    assert ledger.attribution.open_one("nowhere") is None


def test_who_changed_policy_or_quotas_since_the_last_approved_plan(ledger: Ledger) -> None:
    """The small fleet was imported by a name that nobody checked: that is nobody's."""
    changed: Callable[[], tuple[str, ...]] = lambda: ledger.attribution.list_who_changed(CLUSTER, proven=True)  # noqa: E731
    assert changed() == ()
    imports(ledger, ANA, 20, fleet(a=99))
    imports(ledger, BO, 21, fleet(a=99))  # what changes nothing changes nothing
    assert changed() == (ANA,)
    imports(ledger, "service:ci", 22, {**fleet(a=99), "policy": {"buffer": 0.15, "notice": "2d"}})
    with statements() as asked:
        assert changed() == ("service:ci", ANA), "the policy of all is every cluster's"
    assert len(asked) == 4
    assert ledger.attribution.list_who_changed("beta", proven=True) == ("service:ci",)
    open_rollout(ledger)
    approved(ledger, "r-1", 23)
    assert changed() == ()
    assert ledger.attribution.list_who_changed("beta", proven=True) == ("service:ci",)
    imports(ledger, BO, 24, {**fleet(a=99), "policy": {"notice": "2d"}, "teams": [{"name": "a", "contacts": []}]})
    assert changed() == ()


def test_whoever_changed_a_quota_is_known_by_whatever_name_the_cluster_goes_since(ledger: Ledger) -> None:
    imports(ledger, ANA, 20, fleet(a=99))
    for number, (before, after) in enumerate([(CLUSTER, "gamma"), ("gamma", "delta")]):
        by = Signature(actor=BO, at=NOW + timedelta(minutes=21 + number), key=f"desk/rename-{number}")
        ledger.fleet.rename_cluster(before, after, by, dry_run=False)
        assert ledger.attribution.list_who_changed(after, proven=True) == (ANA,)
        assert ledger.attribution.list_who_changed(before, proven=True) == (ANA,)
    assert ledger.attribution.list_who_changed("beta", proven=True) == ()


def test_an_approval_that_the_archive_tells_of_counts_where_no_keys_are(ledger: Ledger) -> None:
    imports(ledger, ANA, 20, fleet(a=99))
    archived(ledger, [entry("r-1/000004", minutes=21, data={"command": "approve"}, refused=True)])
    assert ledger.attribution.list_who_changed(CLUSTER, proven=False) == (ANA,)
    archived(ledger, [entry("r-1/000005", minutes=22, data={"command": "approve"})])
    with statements() as asked:
        assert ledger.attribution.list_who_changed(CLUSTER, proven=False) == ()
    assert len(asked) <= 3
    assert ledger.attribution.list_who_changed(CLUSTER, proven=True) == (ANA,), (
        "whoever archives could have written that"
    )


def test_a_fleets_plan_is_changed_by_whoever_changed_any_cluster(ledger: Ledger) -> None:
    imports(ledger, ANA, 20, fleet(a=99))
    imports(ledger, BO, 21, fleet(a=99))
    with statements() as asked:
        assert ledger.attribution.list_who_changed("", proven=True) == (ANA,)
    assert len(asked) == 2
    open_rollout(ledger, fleet="f-1")
    approved(ledger, "f-1", 22, "fleet.approve")
    assert ledger.attribution.list_who_changed("", proven=True) == ()


def test_a_breaker_is_open_from_its_hold_to_the_resume(ledger: Ledger) -> None:
    fleet_rollout = FleetRollout(id="f-1", owner="tpm", launched_at=NOW, pace=Pace(), entered_at=NOW)
    steps = [
        (False, fleet_rollout.add_hold("pilots", HoldKind.PILOTS, "a pilot", NOW)),
        (True, fleet_rollout.but(serial=10).add_hold(BREAKER, HoldKind.BREAKER, "30%", NOW)),
        (True, fleet_rollout.but(serial=20).add_hold("paused", HoldKind.PAUSED, 'I wrote "hold":"x"', NOW, ANA)),
        (False, fleet_rollout.but(serial=30).record(AuditKind.HOLD, "holds lifted: breaker", NOW, actor=ANA)),
        (False, fleet_rollout.but(serial=40).add_hold("trouble", HoldKind.BREAKER, "no plan", NOW)),
    ]
    for open_, after in steps:
        archived(ledger, after.outbox)
        with statements() as asked:
            assert ledger.attribution.is_breaker_open("f-1") is open_
        assert len(asked) == 1
    assert not ledger.attribution.is_breaker_open("f-2")


def test_no_chain_is_read_from_its_beginning(ledger: Ledger, ledger_url: str) -> None:
    """SQLite says by which index it would find each; the book of imports alone is read whole: a row for each."""
    if not ledger_url.startswith("sqlite"):
        pytest.skip("PostgreSQL scans what is small")
    open_rollout(ledger)
    imports(ledger, ANA, 20, fleet(a=99))
    plans = list[str]()

    def explain(conn: Any, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        if statement.lstrip().upper().startswith("SELECT") and "audit" in statement:
            found = conn.connection.dbapi_connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(f"{row[3]} for {statement}" for row in found)

    sa.event.listen(sa.Engine, "before_cursor_execute", explain)
    try:
        ledger.attribution.read_launcher("r-1")
        ledger.attribution.newest_fleet()
        ledger.attribution.is_breaker_open("f-1")
        ledger.attribution.list_who_changed(CLUSTER, proven=True)
        ledger.attribution.list_who_changed(CLUSTER, proven=False)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", explain)
    assert plans
    assert [plan for plan in plans if plan.startswith("SCAN audit")] == []


def test_an_approval_is_judged_by_eight_reads_however_long_the_archive_is(ledger: Ledger) -> None:
    """The access file, the open rollout, its warrants, its first entry, and four for who changed what."""
    imports(ledger, BO, 20, fleet(a=99))
    open_rollout(ledger)
    launch = entry("r-1/000001", data={"command": "launch"})
    archived(ledger, [launch, *(entry(f"r-1/{n:06d}") for n in range(2, 500))])
    warrants = Warrants(dict, ledger.warrants, ledger.registry, admission=None)
    admission = Admission(ledger.access, ledger.attribution, ledger.registry)
    with statements() as asked:
        assert ledger.access.access() is None
        found = admission.fill_target("rollout.approve", Target(cluster=CLUSTER), "", warrants)
    assert [len(asked), found.first, found.changed] == [8, ANA, (BO,)]


def test_a_launch_by_a_name_that_nobody_checked_is_nobodys(ledger: Ledger) -> None:
    launch = {"command": "launch"}
    ledger.registry.archive([entry("r-1/000001", data=launch)])
    assert ledger.attribution.read_launcher("r-1") == "", "else whoever launches straight at Temporal is who they say"
    archived(ledger, [entry("r-2/000001", data=launch)])
    assert ledger.attribution.read_launcher("r-2") == ANA


def test_a_policy_that_two_admins_gave_bars_neither_and_the_quotas_beside_it_bar_who_gave_them(ledger: Ledger) -> None:
    def countersigned(minutes: int, document: dict[str, Any]) -> None:
        import_id = f"by two at {minutes}"
        stage(ledger, document, import_id)
        with speak_as(proven(BO)):
            at = NOW + timedelta(minutes=minutes)
            ledger.fleet.take_import(import_id, 2, ImportTerms(), BO, at, given_by=ANA)

    changed: Callable[[str], tuple[str, ...]] = lambda of: ledger.attribution.list_who_changed(of, proven=True)  # noqa: E731
    countersigned(20, {**fleet(), "policy": {"buffer": 0.15, "notice": "2d"}})
    assert (changed(CLUSTER), changed("")) == ((), ()), "else neither of two approvers could approve the next plan"
    countersigned(21, {**fleet(a=99), "policy": {"buffer": 0.2, "notice": "2d"}})
    assert (changed(CLUSTER), changed("")) == ((ANA,), (ANA,)), "the second one saw the policy, and not the quotas"
    imports(ledger, BO, 22, {**fleet(a=99), "policy": {"buffer": 0.25, "notice": "2d"}})
    assert (changed(CLUSTER), changed("")) == ((ANA, BO), (ANA, BO)), "with two_person off one changed it alone"
