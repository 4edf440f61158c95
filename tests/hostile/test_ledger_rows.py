"""Rubbish in the ledger's own tables, written by plain SQL into one cluster, beside two that are well.

Where the ledger can refuse a row by itself, it must, on both databases. And as rows may be older than its constraints,
each is written all the same, with the constraints away: then the two others are looked at, planned, divided, tallied
and shown as ever, and what is wrong with the one is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.adapters.ledger.facade import Ledger
from activities.fleet.calls import FleetActivities
from activities.ports.registry import OpenRollout
from activities.rollout.cluster_calls import ClusterActivities
from activities.watch.health_watch import WatchActivities
from activities.watch.tallies import Tallier
from benchmarks.console_fleet import desk_on
from client.doctor import senseless_check
from models.audit_chain import AuditEntry, AuditKind
from models.cluster.snapshot import snapshot_of
from models.fleet.messages import FleetLaunch, FleetPlanRequest
from models.notices import Notify
from models.planning.plan import make_plan
from models.question_base import Question
from models.questions import (
    Archive,
    CheckLedger,
    DeskRequest,
    FlexOf,
    LedgerClusters,
    PastWeek,
    Plannable,
    SnapshotsNow,
)
from models.questions import Calendar as CalendarOf
from models.rollout.messages import ObserveRequest
from models.status_questions import OpenRollouts, RequestsOf
from models.temporal_names import WatchInput
from tests.hostile import Rubbish, table, threw
from tests.integration.ledger.world import ForeignTool, import_fleet, note_stage

SICK, WELL = "gamma", ("alpha", "worked")


@dataclass(frozen=True)
class Row:
    """SQL that leaves the row. `refused`: by the ledger itself. `named`: `doctor` has a sentence with this in it.

    `only`: on this database alone; the other one cannot even be told it, or takes it for something else.
    """

    sql: str
    refused: bool = True
    named: str = ""
    only: str = ""


def _set(table: str, what: str, where: str = "cluster = 'gamma'") -> str:
    return f"UPDATE {table} SET {what} WHERE {where}"


def _sample(at: str, total: int = 64) -> str:
    into = "health_samples (cluster, island, at, total_gpus, healthy_gpus)"
    return f"INSERT INTO {into} VALUES ('gamma', 'main', {at}, {total}, 60)"


_V3 = "cluster = 'gamma' AND team = 'v-3'"
_OF = "name = 'gamma'"
_USED = "INSERT INTO usage_samples (cluster, team, at, scheduled_gpus) VALUES ('gamma', 'v-3', {}, {})"
_WINDOW = (
    "INSERT INTO windows (cluster, kind, starts, ends, reason, gpus, islands)"
    " VALUES ('gamma', 'freeze', {}, {}, {}, {}, {})"
)
_SINCE, _UNTIL = "'2026-01-01T00:00:00.000000Z'", "'2026-01-02T00:00:00.000000Z'"
_JOB = "INSERT INTO jobs (cluster, job, started, team, gpus) VALUES ('gamma', 'j', {}, 'v-3', {})"
_CLASSED = _JOB.replace("gpus)", "gpus, job_class)").format(_SINCE, "8, {}")

ROWS = [
    Rubbish(
        "a child under a leaf with a minimum",
        Row(
            "INSERT INTO quotas (cluster, team, gpus, parent) VALUES ('gamma', 'kid', 1, 'v-3')",
            False,
            "which has sub-quotas",
        ),
    ),
    Rubbish(
        "a circle of parents",
        Row(_set("quotas", "parent = 'v-1'", "cluster = 'gamma' AND team = 'v-org'"), False, "v-org"),
    ),
    Rubbish("an island that is not there", Row(_set("quotas", "islands = 'nowhere'", _V3), False, "nowhere")),
    Rubbish("an island twice", Row(_set("quotas", "islands = 'main,main'", _V3), False, "twice")),
    Rubbish("islands without names", Row(_set("quotas", "islands = ','", _V3), named="islands")),
    Rubbish("a quota of 20 million", Row(_set("quotas", "gpus = 20000000", _V3), named="20000000")),
    Rubbish("a minimum of 20 million", Row(_set("quotas", "minimum = 20000000", _V3), named="20000000")),
    Rubbish("blocks in words", Row(_set("quotas", "blocks = 'many'", _V3), named="many")),
    Rubbish("a block of nothing", Row(_set("quotas", "blocks = '8,0'", _V3), named="protected_blocks")),
    Rubbish("half a list of blocks", Row(_set("quotas", "blocks = '8,'", _V3))),
    Rubbish("a team without a name", Row(_set("quotas", "team = ''", _V3), named="team")),
    Rubbish("a team of 10,000 letters", Row(_set("quotas", f"team = '{'x' * 10_000}'", _V3), named="team")),
    Rubbish("a team of two lines", Row(_set("quotas", "team = 'a\nb'", _V3), named="team")),
    Rubbish("classes without names", Row(_set("quotas", "classes = ','", _V3))),
    Rubbish("nine classes", Row(_set("quotas", "classes = 'a,b,c,d,e,f,g,h,i'", _V3), named="classes")),
    Rubbish("a class of 300 letters", Row(_set("quotas", f"classes = 'a,{'x' * 300}'", _V3), named="classes")),
    Rubbish("a class twice", Row(_set("quotas", "classes = 'a,b,a'", _V3), False, "classes names 'a' twice")),
    Rubbish("an island of 20 million", Row(_set("islands", "total_gpus = 20000000"), named="20000000")),
    Rubbish("nodes of no GPU", Row(_set("clusters", "gpus_per_node = 0", _OF), named="gpus_per_node")),
    Rubbish("a policy that is no JSON", Row(_set("clusters", "policy = '{'", _OF), named="its rows")),
    Rubbish(
        "a policy that is a list", Row(_set("clusters", "policy = '[]'", _OF), named="map names of settings to values")
    ),
    Rubbish("a policy of another kind", Row(_set("clusters", """policy = '{"buffer": 7}'""", _OF), False, "buffer")),
    Rubbish("a scheduler in words", Row(_set("clusters", "source = 'slurm'", _OF), named="its rows")),
    Rubbish("a scheduler of another kind", Row(_set("clusters", """source = '{"way": 1}'""", _OF), False, "way")),
    Rubbish(
        "a Prometheus of another kind", Row(_set("clusters", """health_source = '{"way": 1}'""", _OF), False, "way")
    ),
    Rubbish("a stage that is none", Row(_set("rollouts", "stage = 'enforcing'"), False, "its rollout")),
    Rubbish("a baseline that is none", Row(_set("rollouts", "baseline = '{}'"), False, "its rollout")),
    Rubbish("a sample of now", Row(_sample("'now'"), only="sqlite")),
    Rubbish("a sample of no time", Row(_sample("''"), only="sqlite")),
    Rubbish("a sample in milliseconds", Row(_sample("1767225600000"), only="sqlite")),
    Rubbish("a sample of a day that is none", Row(_sample("'2026-02-30T00:00:00.000000Z'"), only="sqlite")),
    Rubbish("a sample of the end of time", Row(_sample("'infinity'"))),
    Rubbish("a sample from before all time", Row(_sample("'-infinity'"))),
    Rubbish("a sample of 44 before Christ", Row(_sample("'0044-03-15 00:00:00+00 BC'"))),
    Rubbish("a sample of 20 million", Row(_set("health_samples", "total_gpus = 20000000"), named="10,000,000")),
    Rubbish("use at the end of time", Row(_USED.format("'infinity'", 8))),
    Rubbish("use of 20 million", Row(_USED.format(_SINCE, 20_000_000), named="Backstop leaves out 1 sample of")),
    Rubbish("a job of 20 million", Row(_JOB.format(_SINCE, 20_000_000), named="20000000")),
    Rubbish("a job since the end of time", Row(_JOB.format("'infinity'", 8))),
    Rubbish("a job of a class without a name", Row(_CLASSED.format("''"), named="job_class")),
    Rubbish("a job of two classes", Row(_CLASSED.format("'a,b'"), named="job is of class 'a,b'")),
    Rubbish("a job of no class of its quota's", Row(_CLASSED.format("'dev'"), False, "1 job is of class 'dev'")),
    Rubbish("a window without end", Row(_WINDOW.format(_SINCE, "'infinity'", "'x'", "NULL", "NULL"))),
    Rubbish("a window of 20 million", Row(_WINDOW.format(_SINCE, _UNTIL, "'x'", 20_000_000, "NULL"), named="20000000")),
    Rubbish("a window without a reason", Row(_WINDOW.format(_SINCE, _UNTIL, "''", "NULL", "NULL"), named="reason")),
    Rubbish("a window of no island", Row(_WINDOW.format(_SINCE, _UNTIL, "'x'", "NULL", "','"), named="islands")),
    Rubbish(
        "a request that is none",
        Row(
            "INSERT INTO requests VALUES ('q', 'gamma', 'v-3', 'asked', FALSE, '2026-01-01T00:00:00.000000Z', '{}')",
            False,
        ),
    ),
    Rubbish(
        "an entry of the archive that is none",
        Row("INSERT INTO audit VALUES ('gamma', 99, 'k', '', '', '{\"kind\":\"transition\"}')", False),
    ),
]
"""The sick cluster is `gamma`: island main, quotas v-org (of v-1 and v-2) and v-3."""


def _cluster(name: str, total: int, healthy: int, *quotas: dict[str, Any]) -> dict[str, Any]:
    islands = [{"name": "main", "total_gpus": total, "healthy_gpus": healthy}]
    return {"name": name, "islands": islands, "quotas": list(quotas)}


FLEET = {
    "clusters": [
        _cluster("alpha", 100, 100, {"team": "a", "gpus": 40}),
        # The worked case of docs/design.md: 39 of 345 are cut, and 26 have no healthy GPU.
        _cluster("worked", 361, 319, {"team": "research", "gpus": 345, "scheduled_gpus": 310, "idle_gpus": 0}),
        _cluster(
            SICK,
            64,
            60,
            {"team": "v-org", "gpus": 30},
            {"team": "v-1", "gpus": 10, "parent": "v-org"},
            {"team": "v-2", "gpus": 10, "parent": "v-org"},
            {"team": "v-3", "gpus": 16, "minimum_gpus": 4, "scheduled_gpus": 8, "idle_gpus": 0},
        ),
    ]
}


class Site:
    """Real adapters and activities on one ledger, without Temporal."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.rollouts = ClusterActivities(ledger.ports)
        nobody = cast("Client", None)
        self.fleets = FleetActivities(nobody, ledger.ports, self.rollouts)
        self.watch = WatchActivities(nobody, ledger.ports)
        self.tallier = Tallier(ledger.ports, ledger.tallies)
        self.desk = desk_on(ledger)

    def ask(self, question: Question[Any], actor: str = "tpm") -> Any:
        request = DeskRequest(kind=question.kind, actor=actor, arguments=question.model_dump(mode="json"))
        return question.answers().validate_python(ActivityEnvironment().run(self.desk.answer, request).result)

    def sees(self) -> dict[str, Any]:
        """Return what each reader says of the clusters with valid rows, without looks that come by time alone."""
        now = datetime.now(UTC)
        marks = self.watch._fingerprints(WatchInput(), lambda: None)
        launch = FleetLaunch(fleet="f", owner="tpm")
        prospects = ActivityEnvironment().run(self.fleets.plan_fleet, FleetPlanRequest(launch=launch, at=now)).clusters
        while self.tallier.go_on(now, timedelta(hours=1)):
            pass
        (tallied,) = self.ledger.tallies.points("worked", [now + timedelta(seconds=1)], timedelta(hours=2))
        shown = [c for c in self.ask(LedgerClusters(limit=50)) if c.name in WELL]
        plannable = [p for p in self.ask(SnapshotsNow(limit=50)) if isinstance(p, Plannable)]
        plans = {p.snapshot.cluster: make_plan(p.snapshot, p.policy) for p in plannable}
        flex = {one.cluster: one.surplus_gpus for one in self.ask(FlexOf(limit=50))}
        past = PastWeek(since=now - timedelta(days=7), until=now, times=(now,), within_seconds=7200)
        calendar = self.ask(CalendarOf(since=now - timedelta(days=9999)))
        return {
            "watched": {c: marks[c] for c in WELL},
            "fleet plan": [(p.cluster, p.cut_gpus, p.wave, p.why_not) for p in prospects if p.cluster in WELL],
            "tallied": (tallied.promised_gpus, tallied.phantom_gpus),
            "shown": [(c.name, c.stage, c.cluster.quotas, c.cluster.islands) for c in shown],
            "planned": {c: (plans[c].cut_gpus, plans[c].phantom_gpus) for c in WELL},
            "flex": {c: flex[c] for c in WELL},
            "open": [one.cluster for one in self.ask(OpenRollouts()) if one.cluster in WELL],
            "week": self.ask(past).clusters,
            "calendar": [e.cluster for e in calendar if e.cluster in WELL],
            "requests": self.ask(RequestsOf()),
        }


@pytest.fixture
def site(ledger_url: str) -> Iterator[Site]:
    """Three clusters, each monitored, health of now."""
    with Ledger(ledger_url) as ledger:
        import_fleet(ledger, FLEET, now=datetime.now(UTC))
        for spec, _ in ledger.fleet.clusters("", 9):
            baseline = snapshot_of(spec)
            opening = OpenRollout(
                rollout=f"{spec.name}/1", cluster=spec.name, owner="tpm", opened_at=datetime.now(UTC), baseline=baseline
            )
            ledger.registry.open_rollout(opening, adopt=False)
            note_stage(ledger, opening.rollout, "monitored", ended=False, completed=False)
        yield Site(ledger)


@pytest.fixture
def tool(ledger_url: str) -> Iterator[ForeignTool]:
    foreign = ForeignTool(ledger_url)
    yield foreign
    foreign.close()


@contextmanager
def unguarded(tool: ForeignTool) -> Iterator[None]:
    """Remove the ledger's own constraints meanwhile, to write rows as from before they existed."""
    if tool.postgresql:
        found = tool.rows(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conname ~ '_sense$'"
        )
        for of_table, name, _ in found:
            tool.run(f"ALTER TABLE {of_table} DROP CONSTRAINT {name}")
        again = [f"ALTER TABLE {of_table} ADD CONSTRAINT {name} {rule}" for of_table, name, rule in found]
    else:
        made = tool.rows("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name GLOB '*_sense_*'")
        for name, _ in made:
            tool.run(f"DROP TRIGGER {name}")
        again = [sql for _, sql in made]
    assert len(again) > 20
    try:
        yield
    finally:
        for statement in again:
            tool._connection.execute(statement)  # it may have question marks


@table(ROWS)
def test_a_senseless_row_is_its_own_cluster_s_trouble(rubbish: Rubbish, site: Site, tool: ForeignTool) -> None:
    row = cast("Row", rubbish.value)
    if row.only and tool.postgresql:
        pytest.skip("PostgreSQL takes the text for a time, or none")
    before = site.sees()
    assert before["watched"]["worked"].endswith("short research 26")
    assert before["planned"]["worked"] == (39, 26)
    assert before["flex"] == {"alpha": 60, "worked": 0}
    if row.refused:
        assert tool.refused(row.sql)
        with unguarded(tool):
            assert tool.run(row.sql)
    else:
        assert tool.run(row.sql)
    assert site.sees() == before
    answer = site.ask(CheckLedger())
    assert answer.senseless.keys() | answer.windows.keys() <= {SICK}
    told = [*answer.senseless.get(SICK, ()), *answer.windows.values()]
    assert row.named in " ".join(told)
    assert bool(told) == bool(row.named)
    threw("the ledger's tables")


def test_a_team_told_in_no_known_way_is_told_as_the_policy_says_and_holds_up_nobody(
    site: Site, tool: ForeignTool
) -> None:
    with_teams = FLEET | {"teams": [{"name": "a", "contacts": ["a@x.example"]}, {"name": "v-1", "notify": "digest"}]}
    import_fleet(site.ledger, with_teams, "teams", now=datetime.now(UTC))
    odd = "UPDATE teams SET notify = 'daily' WHERE name = 'a'"
    assert tool.refused(odd)
    with unguarded(tool):
        assert tool.run(odd)
    assert [(team.name, team.notify) for team in site.ledger.fleet.teams()] == [("a", None), ("v-1", Notify.DIGEST)]
    assert len(site.ledger.fleet.fleet_page("", 9).teams) == 2
    assert site.ledger.outbox.wishes(["a"]) == {"a": (("a@x.example",), None)}
    answer = site.ask(CheckLedger())
    assert (answer.senseless, list(answer.senseless_teams)) == ({}, ["a"])
    (said,) = answer.senseless_teams.values()
    assert said.startswith("team a in the ledger does not make sense: notify is 'daily', not one of each, digest, ")
    check = senseless_check(answer.senseless, answer.senseless_teams)
    assert (check.ok, check.text) == (False, said)
    import_fleet(site.ledger, with_teams | {"teams": [{"name": "a", "notify": "each"}]}, "again", now=datetime.now(UTC))
    assert site.ask(CheckLedger()).senseless_teams == {}


def test_one_old_sample_of_20_million_spoils_no_derivation(site: Site, tool: ForeignTool) -> None:
    """A buffer from health history goes by all other samples, and `doctor` names the one."""
    now = datetime.now(UTC)
    for days in range(60, 0, -1):
        at = now - timedelta(days=days)
        stored = at if tool.postgresql else f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
        for cluster in (SICK, "worked"):
            total, healthy = (64, 60) if cluster == SICK else (361, 319)
            tool.run(
                "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus)"
                " VALUES (?, 'main', ?, ?, ?)",
                *(cluster, stored, total, healthy),
            )
    before = {name: site.rollouts.health_hours(name, now) for name in (SICK, "worked")}
    with unguarded(tool):
        at = now - timedelta(days=30, hours=1)
        stored = at if tool.postgresql else f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
        tool.run(
            "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus)"
            " VALUES ('gamma', 'main', ?, 20000000, 3)",
            stored,
        )
    assert {name: site.rollouts.health_hours(name, now) for name in (SICK, "worked")} == before
    assert "Backstop leaves out 1 sample of" in site.ask(CheckLedger()).senseless[SICK][0]
    threw("the ledger's tables")


def test_the_look_and_the_launch_of_the_one_say_what_is_wrong(site: Site, tool: ForeignTool) -> None:
    """The rollout's status says so too (`fail_look`), and nothing is planned from it."""
    tool.run("INSERT INTO quotas (cluster, team, gpus, parent) VALUES ('gamma', 'kid', 1, 'v-3')")
    looked = ActivityEnvironment()
    for cluster in WELL:
        seen = looked.run(site.rollouts.observe, ObserveRequest(cluster=cluster, at=datetime.now(UTC)))
        assert seen.health is not None
    with pytest.raises(ApplicationError, match="minimum_gpus is 4 for team 'v-3', which has sub-quotas"):
        looked.run(site.rollouts.observe, ObserveRequest(cluster=SICK, at=datetime.now(UTC)))
    (why,) = [p.why_not for p in site.ask(SnapshotsNow(limit=50)) if not isinstance(p, Plannable)]
    assert why.startswith("cluster gamma in the ledger does not make sense: ")
    with pytest.raises(ApplicationError, match="cluster gamma in the ledger does not make sense"):
        site.ask(FlexOf(cluster=SICK))


FORGED: dict[str, dict[str, object]] = {
    "of a rollout's own kind": {"key": "alpha/1/000007", "kind": "effect", "refused": False},
    "under a rollout's key": {"key": "alpha/1/000007"},
    "of another person": {"actor": "guard"},
    "that was not refused": {"refused": False},
    "of a rollout": {"rollout": "alpha/1"},
    "beside another": {"key": "attempt/1/beside/2"},
}


@pytest.mark.parametrize("what", FORGED)
def test_the_desk_archives_no_entry(what: str, site: Site) -> None:
    given = {"key": "attempt/1", "actor": "tpm", "refused": True, "kind": "command", **FORGED[what]}
    entry = AuditEntry.model_validate({"cluster": "alpha", "at": datetime.now(UTC), "text": "nothing", **given})
    before = site.ledger.registry.entries_after("alpha", 0, 9)
    with pytest.raises(ApplicationError, match=r"a client may archive only its own|own id .* may not"):
        site.ask(Archive(entries=(entry,)))
    assert site.ledger.registry.entries_after("alpha", 0, 9) == before


def test_the_desk_archives_a_refused_attempt_of_its_own_time(site: Site) -> None:
    then = datetime(2020, 1, 1, tzinfo=UTC)
    entry = AuditEntry(
        key="attempt/1", cluster="alpha", at=then, kind=AuditKind.COMMAND, actor="tpm", text="no", refused=True
    )
    before = site.ledger.registry.entries_after("alpha", 0, 9)
    site.ask(Archive(entries=(entry,)))
    (stored,) = site.ledger.registry.entries_after("alpha", 0, 9)[len(before) :]
    asserted = {"proof": {"proof": "asserted"}}
    assert stored.entry == entry.model_copy(update={"at": stored.entry.at, "data": asserted})
    assert stored.entry.at != then


def test_nobody_says_at_the_desk_how_they_were_proven(site: Site) -> None:
    claim = {"proof": {"proof": "peer", "how": "this machine"}}
    given = {"key": "attempt/2", "actor": "tpm", "refused": True, "kind": "command", "text": "no", "data": claim}
    entry = AuditEntry.model_validate({"cluster": "alpha", "at": datetime.now(UTC), **given})
    before = site.ledger.registry.entries_after("alpha", 0, 9)
    site.ask(Archive(entries=(entry,)))
    (stored,) = site.ledger.registry.entries_after("alpha", 0, 9)[len(before) :]
    assert stored.entry.data == {"proof": {"proof": "asserted"}}
