"""The database's own record of who changed a quota past Backstop, and the flex that a scheduler reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from activities.adapters.ledger.facade import Ledger
from models.cluster.readings import LimitMode
from models.rollout.effects import EffectKind
from tests.integration.ledger.world import (
    CLUSTER,
    ForeignTool,
    fleet,
    foreign_write,
    import_fleet,
    land,
    open_rollout,
    set_soft,
)

UNNAMED = "somebody (SQLite knows no users)"


def who(ledger: Ledger, after: int = 0) -> dict[str, str]:
    return {c.team: c.by for c in ledger.quotas.changes(CLUSTER, after)}


def tools_name(tool: ForeignTool) -> str:
    if not tool.postgresql:
        return UNNAMED
    tool.run("SET application_name = 'slurmctl'")
    return f"user {tool.one('SELECT session_user')} (slurmctl)"


CHANGES: dict[str, tuple[str, set[str]]] = {
    "a value": ("UPDATE quotas SET gpus = 99 WHERE cluster = 'alpha' AND team = 'a'", {"a"}),
    "several": ("UPDATE quotas SET gpus = gpus - 1 WHERE cluster = 'alpha' AND team IN ('a', 'b')", {"a", "b"}),
    "a mode": ("UPDATE quotas SET mode = 'soft' WHERE cluster = 'alpha' AND team = 'a'", {"a"}),
    "islands": ("UPDATE quotas SET islands = 'X,Y' WHERE cluster = 'alpha' AND team = 'a'", {"a"}),
    "who may target it": ("UPDATE quotas SET namespaces = 'lab' WHERE cluster = 'alpha' AND team = 'a'", {"a"}),
    "classes of its jobs": ("UPDATE quotas SET classes = 'x,y' WHERE cluster = 'alpha' AND team = 'a'", set()),
    "one comes": ("INSERT INTO quotas (cluster, team, gpus) VALUES ('alpha', 'n', 1)", {"n"}),
    "one goes": ("DELETE FROM quotas WHERE cluster = 'alpha' AND team = 'c'", {"c"}),
    "another name": ("UPDATE quotas SET team = 'cc' WHERE cluster = 'alpha' AND team = 'c'", {"c", "cc"}),
    "nothing new": ("UPDATE quotas SET gpus = gpus WHERE cluster = 'alpha'", set()),
    "elsewhere": ("UPDATE quotas SET gpus = 1 WHERE cluster = 'beta'", set()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_database_notes_who_changed_which_quota_and_when(what: str, ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    name, generation = tools_name(tool), tool.generation()
    statement, teams = CHANGES[what]
    began = datetime.now(UTC) - timedelta(seconds=1)
    tool.run(statement)
    assert who(ledger, generation) == dict.fromkeys(teams, name)
    for change in ledger.quotas.changes(CLUSTER, generation):
        assert began < change.at
        assert change.at - timedelta(seconds=1) < datetime.now(UTC)
        assert change.generation > generation
    assert who(ledger, tool.generation()) == {}, "what the rollout knows already is no news"


def test_without_an_open_rollout_nothing_is_noted(ledger: Ledger, tool: ForeignTool) -> None:
    tool.set("a", 90)
    assert tool.one("SELECT count(*) FROM quota_changes") == 0


def test_our_own_writes_are_nobodys_changes(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    set_soft(ledger, 1, ("a", 100, 80))
    land(ledger, EffectKind.HARDEN, 2)
    assert tool.one("SELECT count(*) FROM quota_changes") == 0


def test_the_last_one_to_change_a_quota_is_named(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    foreign_write(ledger, CLUSTER, "a", 90, "ann")
    tool.set("b", 110)
    foreign_write(ledger, CLUSTER, "b", 109, "bob")
    tool.set("c", 70)
    found = who(ledger)
    assert (found["a"], found["b"]) == ("ann", "bob")
    assert found["c"] not in ("ann", "bob"), "a plain statement was somebody else's"


def test_an_import_is_the_work_of_whoever_imported(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger, shadow=True)
    tool.set("c", 70)
    import_fleet(ledger, fleet(b=110, c=70), "second")
    found = who(ledger)
    assert found["b"] == "tpm"
    assert found["c"] != "tpm"


@pytest.mark.parametrize("mode", [LimitMode.SOFT, LimitMode.HARD])
def test_a_reading_says_that_modes_count_and_what_they_are(mode: LimitMode, ledger: Ledger, tool: ForeignTool) -> None:
    tool.run("UPDATE quotas SET mode = ? WHERE team = 'a' AND cluster = 'alpha'", mode.value)
    reading = ledger.quotas.read(CLUSTER)
    assert reading.counts_modes
    assert {q.mode for q in reading.quotas if q.team == "a"} == {mode}


def test_a_tool_needs_no_more_rights_than_before(postgres_ledger_url: str) -> None:
    """It may write quotas and count the generation; the database itself makes the note."""
    with Ledger(postgres_ledger_url) as ledger, psycopg.connect(postgres_ledger_url, autocommit=True) as owner:
        import_fleet(ledger, fleet())
        open_rollout(ledger)
        owner.execute("DROP ROLE IF EXISTS slurm")
        owner.execute("CREATE ROLE slurm LOGIN")
        owner.execute("GRANT SELECT, UPDATE ON quotas, clusters TO slurm")
        try:
            with psycopg.connect(postgres_ledger_url, user="slurm", autocommit=True) as tool:
                tool.execute("UPDATE quotas SET gpus = 90 WHERE cluster = 'alpha' AND team = 'a'")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    tool.execute("UPDATE quota_changes SET changed_by = 'nobody'")
            assert who(ledger) == {"a": "user slurm"}
        finally:
            owner.execute("DROP OWNED BY slurm")
            owner.execute("DROP ROLE slurm")


# --- flex ------------------------------------------------------------------------------------------


def flex(tool: ForeignTool) -> tuple[object, ...]:
    (row,) = tool.rows("SELECT follows_health, flex_gpus, flex_band_gpus FROM clusters WHERE name = 'alpha'")
    return (bool(row[0]), *row[1:])


def test_a_scheduler_reads_the_surplus_that_was_last_published(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    assert flex(tool) == (False, None, 0)
    before = ledger.quotas.read(CLUSTER)
    for counter, gpus in enumerate((13, 9, 0, 40), start=1):
        receipt = land(ledger, EffectKind.FOLLOW, counter, flex_gpus=gpus, flex_band_gpus=8)
        assert receipt.flex_gpus == gpus
        assert flex(tool) == (True, gpus, 8)
        reading = ledger.quotas.read(CLUSTER)
        assert (reading.flex_gpus, reading.flex_band_gpus) == (gpus, 8)
        assert (reading.quotas, reading.generation) == (before.quotas, before.generation)


@pytest.mark.parametrize("kind", [EffectKind.UNFOLLOW, EffectKind.CLOSE])
def test_nobody_reads_a_surplus_that_nobody_follows(kind: EffectKind, ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    land(ledger, EffectKind.FOLLOW, 1, flex_gpus=13, flex_band_gpus=8)
    land(ledger, kind, 2)
    assert flex(tool) == (False, None, 0)


def test_flex_moves_under_any_generation_that_the_call_does_not_name(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    tool.set("a", 90)
    land(ledger, EffectKind.FOLLOW, 1, flex_gpus=7)
    assert flex(tool) == (True, 7, 0)


# --- the fewest healthy GPUs of late ---------------------------------------------------------------


def test_the_fewest_healthy_gpus_of_late_are_those_of_any_sample_that_stood(ledger: Ledger, tool: ForeignTool) -> None:
    now = ledger.health._database.now()
    tool.run("DELETE FROM health_samples WHERE cluster = 'alpha'")

    def sample(island: str, minutes: int, healthy: int) -> None:
        at = now - timedelta(minutes=minutes)
        given = at if tool.postgresql else f"{at:%Y-%m-%dT%H:%M:%S}.000000Z"
        tool.run(
            "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
            " VALUES ('alpha', ?, ?, 200, ?, '')",
            island,
            given,
            healthy,
        )

    for minutes, healthy in ((90, 5), (60, 150), (20, 180), (10, 170), (-120, 3)):
        sample("X", minutes, healthy)
    sample("Y", 20, 60)
    half_an_hour = now - timedelta(minutes=30)
    assert ledger.health.least_healthy(CLUSTER, half_an_hour, now) == {"X": 150, "Y": 60}, (
        "what stood when it began counts"
    )
    assert ledger.health.least_healthy(CLUSTER, now - timedelta(minutes=15), now) == {"X": 170, "Y": 60}
    assert ledger.health.least_healthy(CLUSTER, now - timedelta(minutes=61), now) == {"X": 5, "Y": 60}
    assert ledger.health.least_healthy("beta", half_an_hour, now)
    assert ledger.health.least_healthy("nowhere", half_an_hour, now) == {}


# --- usual health ----------------------------------------------------------------------------------


def lived(tool: ForeignTool, now: datetime, island: str, *healthy: int, first_hour: int = 170) -> None:
    """Samples an hour apart, from so many hours ago on."""
    tool.run("DELETE FROM health_samples WHERE cluster = 'alpha' AND island = ?", island)
    for n, gpus in enumerate(healthy):
        at = now - timedelta(hours=first_hour - n)
        given = at if tool.postgresql else f"{at:%Y-%m-%dT%H:%M:%S}.000000Z"
        tool.run(
            "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
            " VALUES ('alpha', ?, ?, 200, ?, '')",
            island,
            given,
            gpus,
        )


def test_usual_health_is_the_median_of_the_window_rounded_down(ledger: Ledger, tool: ForeignTool) -> None:
    now = ledger.health._database.now()
    week = timedelta(days=7)
    # Of 170 hours the first two lie before the week: 168 samples of it, half at 150 and half at 180.
    lived(tool, now, "X", 7, 7, *([150, 180] * 84))
    lived(tool, now, "Y", *([190] * 110), *([10] * 60))
    assert ledger.health.usual_healthy(CLUSTER, week, now) == {"X": 150, "Y": 190}
    assert ledger.health.usual_healthy(CLUSTER, timedelta(days=2), now) == {"X": 150, "Y": 10}


def test_an_island_with_too_little_history_has_no_usual_health(ledger: Ledger, tool: ForeignTool) -> None:
    now = ledger.health._database.now()
    lived(tool, now, "X", *([150] * 160), first_hour=160)  # begins inside the week
    lived(tool, now, "Y", *([190] * 12))  # begins before it, and fell silent
    assert ledger.health.usual_healthy(CLUSTER, timedelta(days=7), now) == {}
    assert ledger.health.usual_healthy(CLUSTER, timedelta(days=6), now) == {"X": 150}


def test_samples_dated_ahead_are_not_usual(ledger: Ledger, tool: ForeignTool) -> None:
    now = ledger.health._database.now()
    lived(tool, now, "X", *([150] * 169), *([3] * 400))
    assert ledger.health.usual_healthy(CLUSTER, timedelta(days=7), now)["X"] == 150
