"""Importing a fleet file, and showing it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.ports.clusters import CalendarPort, HealthPort, UsagePort
from activities.ports.desk import FleetPort
from activities.ports.quota_systems import QuotaPort
from activities.ports.registry import RegistryPort
from models.cluster.fleet_file import Fleet, Team
from models.cluster.import_outcome import ImportTerms, Verb
from models.errors import BadInput, Refusal
from tests.integration.ledger.world import (
    CLUSTER,
    LEAF_SUM,
    NOW,
    ForeignTool,
    fleet,
    import_fleet,
    minutes,
    open_rollout,
    reserve,
    set_soft,
    stage,
    take,
    twice,
)


def everything(tool: ForeignTool) -> dict[str, list[tuple[Any, ...]]]:
    """All that an import may write but its samples."""
    return {
        table: tool.rows(f"SELECT * FROM {table} ORDER BY 1, 2")
        for table in ("clusters", "islands", "quotas", "fleet", "windows", "contacts")
    }


def shown(ledger: Ledger) -> dict[str, Any]:
    return {spec.name: spec for spec, _ in ledger.fleet.clusters("", 1000)}


def test_the_parts_implement_the_ports(ledger: Ledger) -> None:
    """mypy reads this."""
    quotas: QuotaPort = ledger.quotas
    health: HealthPort = ledger.health
    usage: UsagePort = ledger.usage
    calendar: CalendarPort = ledger.calendar
    registry: RegistryPort = ledger.registry
    parts: FleetPort = ledger.fleet
    assert all((quotas, health, usage, calendar, registry, parts))


def test_an_imported_fleet_stands_in_the_ledger(empty_ledger: Ledger, tool: ForeignTool) -> None:
    twice(lambda: stage(empty_ledger, fleet(), "first"))
    counts = twice(lambda: empty_ledger.fleet.commit_import("first", 2, "tpm", NOW))
    assert counts == {"clusters": 2, "quotas": 7, "added": 7, "changed": 0, "removed": 0}
    assert tool.quotas() == [
        ("a", 100, "hard", "X", "", 0, None),
        ("b", 120, "hard", None, "64", 10, None),
        ("c", 80, "hard", "X", "", 0, None),
        ("org", 60, "hard", None, "", 0, None),
        ("org-1", 30, "hard", None, "", 0, "org"),
        ("org-2", 30, "hard", None, "", 0, "org"),
    ]
    assert tool.rows("SELECT name, total_gpus FROM islands WHERE cluster = 'alpha'") == [("X", 200), ("Y", 200)]
    assert tool.rows("SELECT team, position, address FROM contacts ORDER BY position") == [
        ("a", 0, "log:"),
        ("a", 1, "mailto:a@example.org"),
    ]
    assert json.loads(tool.one("SELECT policy FROM clusters WHERE name = 'alpha'")) == {"buffer": {"ramp": [0.05, 0.1]}}
    assert tool.rows("SELECT team, scheduled_gpus, idle_gpus FROM usage_samples ORDER BY team") == [
        ("a", 90, 10),
        ("b", 120, 0),
    ]
    assert tool.rows("SELECT island, healthy_gpus, block_gpus, source FROM health_samples ORDER BY island") == [
        ("X", 180, 160, "tpm"),
        ("Y", 190, None, "tpm"),
        ("Z", 64, None, "tpm"),
    ]
    assert tool.rows("SELECT import_id, actor FROM imports") == [("first", "tpm")]
    assert tool.rows("SELECT part FROM import_parts") == []


def test_what_was_imported_is_shown_again(ledger: Ledger) -> None:
    given = Fleet.model_validate(fleet())
    assert twice(lambda: shown(ledger)) == {c.name: c for c in given.clusters}
    assert ledger.fleet.teams() == (Team(name="a", contacts=("log:", "mailto:a@example.org")), Team(name="b"))


def test_a_window_of_any_year_is_shown_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, ledger_url: str) -> None:
    """This holds also if the database's own clock is far from Greenwich."""
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    document = fleet()
    spans = [
        ("0001-01-01T00:00:00Z", "0999-06-01T00:00:00Z"),
        ("1999-01-01T00:00:00Z", "2000-01-01T00:00:00.000001Z"),
        ("2026-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
    ]
    windows = [{"kind": "sev", "starts": starts, "ends": ends, "reason": "r"} for starts, ends in spans]
    document["clusters"][1]["windows"] = windows
    with Ledger(ledger_url) as far:
        import_fleet(far, document, "second")
        assert far.calendar.windows(["beta"])["beta"] == Fleet.model_validate(document).clusters[1].windows


def test_the_identical_file_again_moves_nothing(ledger: Ledger, tool: ForeignTool) -> None:
    before = everything(tool)
    counts = import_fleet(ledger, fleet(), "second", NOW + minutes(5))
    assert counts == {"clusters": 2, "quotas": 7, "added": 0, "changed": 0, "removed": 0}
    assert everything(tool) | {"windows": []} == before | {"windows": []}
    assert ledger.health.read([CLUSTER])[CLUSTER].at == NOW + minutes(5)


def test_committing_again_answers_the_stored_result(ledger: Ledger, tool: ForeignTool) -> None:
    tool.set("a", 1)
    before = everything(tool)
    later = NOW + timedelta(days=30)
    assert ledger.fleet.commit_import("first", 2, "tpm", later)["added"] == 7
    assert ledger.fleet.commit_import("first", 99, "else", later)["added"] == 7
    assert everything(tool) == before


def test_a_changed_file_writes_what_differs(ledger: Ledger, tool: ForeignTool) -> None:
    document = fleet(a=90)
    alpha = document["clusters"][0]
    alpha["quotas"] = [q for q in alpha["quotas"] if q["team"] != "c"] + [{"team": "new", "gpus": 5}]
    alpha["islands"][1] |= {"total_gpus": 240}
    alpha["gpus_per_node"] = 4
    document["clusters"] = [alpha]
    document["teams"] = [{"name": "a", "contacts": ["log:"]}]
    del document["policy"]
    before = tool.generation()
    beta = tool.quotas("beta")
    counts = take(ledger, document, prune=True).counts
    assert counts == {"clusters": 1, "quotas": 6, "added": 1, "changed": 1, "removed": 1}
    assert tool.gpus() == {"a": 90, "b": 120, "org": 60, "org-1": 30, "org-2": 30, "new": 5}
    assert tool.generation() == before + 4  # one lowered, one gone, one come, one island's total
    assert (beta, tool.quotas("beta")) == ([("a", 32, "hard", None, "", 0, None)], [])
    assert ledger.registry.facts(CLUSTER).gpus_per_node == 4
    assert ledger.registry.facts(CLUSTER).policy.notice == timedelta(days=1)  # no policy in the file
    assert ledger.fleet.teams()[0] == Team(name="a", contacts=("log:",))


def test_an_imports_changes_of_quotas_are_foreign_writes(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger, shadow=True)  # it writes nothing, and keeps nobody from it
    before = tool.generation()
    import_fleet(ledger, fleet(b=110), "second")
    assert tool.generation() == before + 1
    assert tool.one("SELECT written_by FROM quotas WHERE team = 'b'") is None


def test_an_earlier_build_s_import_is_refused_whole_where_a_line_is(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    set_soft(ledger, 1, ("b", 120, 100))
    reserve(ledger, 2, LEAF_SUM - 20)
    before = everything(tool)
    samples = tool.one("SELECT count(*) FROM health_samples")
    document = fleet(b=110)
    document["clusters"][1]["quotas"][0]["gpus"] = 1
    document["teams"] = []
    document["policy"] = {}
    for _ in range(2):
        with pytest.raises(
            Refusal, match=r"alpha quota b: gpus 100 -> 110: cannot be changed while rollout r-1 is open"
        ):
            import_fleet(ledger, document, "second")
    assert everything(tool) == before
    assert tool.one("SELECT count(*) FROM health_samples") == samples
    assert tool.one("SELECT count(*) FROM imports") == 1


def test_how_slurm_holds_classes_waits_for_no_rollout_and_where_the_quotas_are_does(
    ledger: Ledger, tool: ForeignTool
) -> None:
    document = fleet()
    slurm = {"connection": "local", "cluster": "alpha", "root": "org", "classes": "write"}
    document["clusters"][0]["slurm"] = slurm
    import_fleet(ledger, document, "on")
    open_rollout(ledger)
    grace = {"engines": {"grace": "1m"}}
    document["clusters"][0]["slurm"] = slurm | {"classes": "off", "yields": grace}
    import_fleet(ledger, document, "off")
    written = tool.one("SELECT source FROM clusters WHERE name = 'alpha'")
    assert json.loads(str(written))["yields"] == grace
    assert "classes" not in json.loads(str(written))
    document["clusters"][0]["slurm"] = slurm | {"root": "elsewhere"}
    with pytest.raises(Refusal, match=r"alpha slurm: .* cannot be changed while rollout r-1 is open"):
        import_fleet(ledger, document, "moved")


def test_a_tree_may_be_rebuilt_by_an_import(ledger: Ledger, tool: ForeignTool) -> None:
    document = fleet()
    document["clusters"][0]["quotas"] = [
        {"team": "org-1", "gpus": 60},
        {"team": "org", "gpus": 60, "parent": "org-1"},
    ]
    take(ledger, document, prune=True)
    assert tool.rows("SELECT team, parent FROM quotas WHERE cluster = 'alpha' ORDER BY team") == [
        ("org", "org-1"),
        ("org-1", None),
    ]


def test_windows_are_those_of_the_last_file(ledger: Ledger, tool: ForeignTool) -> None:
    document = fleet()
    (window,) = document["clusters"][0]["windows"]
    document["clusters"][0]["windows"] = [window | {"reason": "power"}, window | {"kind": "sev"}]
    before = tool.generation()
    import_fleet(ledger, document, "second")
    assert [w.reason for w in ledger.calendar.windows([CLUSTER])[CLUSTER]] == ["power", "switches"]
    assert tool.generation() == before


def large_fleet(changed: bool) -> dict[str, Any]:
    """Return a fleet with enough rows to travel in bulk; `changed`: other values, and other names from 40 on."""
    names = [f"t{n:02}" if n < 40 or not changed else f"u{n}" for n in range(80)]
    more = 1 if changed else 0
    window = {"kind": "sev", "starts": "2026-03-02T00:00:00.000007+02:00", "ends": "2026-03-03T00:00:00Z"}
    cluster = {
        "name": "large",
        "islands": [{"name": n, "total_gpus": 64 + more, "healthy_gpus": 60, "block_gpus": 8} for n in names],
        "windows": [window | {"reason": f"it's {n}", "islands": [n], "gpus": more} for n in names],
        "quotas": [
            {"team": n, "gpus": 8 + more, "islands": [n], "protected_blocks": [4, 4], "minimum_gpus": 1}
            | {"scheduled_gpus": 3 + more, "idle_gpus": more}
            for n in names
        ],
    }
    teams = [{"name": n, "contacts": [f"log:{n}", f"mailto:{n}"]} for n in names]
    return {"clusters": [cluster, *({"name": n, "islands": cluster["islands"][:1]} for n in names)], "teams": teams}


def test_large_files_land_as_small_ones_do(empty_ledger: Ledger, tool: ForeignTool) -> None:
    counts = import_fleet(empty_ledger, large_fleet(changed=False))
    assert counts == {"clusters": 81, "quotas": 80, "added": 80, "changed": 0, "removed": 0}
    assert shown(empty_ledger) == {c.name: c for c in Fleet.model_validate(large_fleet(changed=False)).clusters}
    assert tool.generation("large") == 160

    later = NOW + minutes(5)
    counts = take(empty_ledger, large_fleet(changed=True), now=later, prune=True).counts
    assert counts == {"clusters": 81, "quotas": 80, "added": 40, "changed": 40, "removed": 40}
    wanted = Fleet.model_validate(large_fleet(changed=True))
    found = shown(empty_ledger)
    assert {c.name: c for c in wanted.clusters} == {c.name: found[c.name] for c in wanted.clusters}
    assert tool.generation("large") == 160 + 2 * (40 + 40 + 40)  # of quotas and islands: changed, gone, come
    assert [t for t in empty_ledger.fleet.teams() if t.name.startswith("u")] == list(wanted.teams[40:])

    generation = tool.generation("large")
    assert take(empty_ledger, large_fleet(changed=True), "third", later, prune=True).counts["changed"] == 0
    assert tool.generation("large") == generation


def bad(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = fleet()
    change(document)
    return zlib.compress(json.dumps(document).encode())


BAD_DOCUMENTS = {
    "not zlib": (b"hello", "damaged and cannot be decompressed"),
    "cut short": (zlib.compress(b"{}")[:-3], "cut short"),
    "not JSON": (zlib.compress(b"hello"), "Invalid JSON"),
    "negative": (
        bad(lambda d: d["clusters"][0]["quotas"][0].update(gpus=-1)),
        r"clusters\.0\.quotas\.0\.gpus: .*greater than or equal to 0 \(given: -1\)",
    ),
    "unknown field": (bad(lambda d: d.update(cluster=[])), "cluster: Extra inputs"),
    "idle above scheduled": (
        bad(lambda d: d["clusters"][0]["quotas"][0].update(idle_gpus=91)),
        r"idle_gpus is 91, above scheduled_gpus 90 \(team a\)",
    ),
    "a policy that is none": (
        bad(lambda d: d["clusters"][1].update(policy={"notise": "1d"})),
        "policy of cluster beta: notise: Extra inputs",
    ),
    "an island with a comma": (
        bad(lambda d: d["clusters"][1]["islands"][0].update(name="Z,Y")),
        "island 'Z,Y' has a comma",
    ),
}


@pytest.mark.parametrize("what", BAD_DOCUMENTS)
def test_bad_documents_are_refused_whole(what: str, ledger: Ledger, tool: ForeignTool) -> None:
    payload, sentence = BAD_DOCUMENTS[what]
    before = everything(tool)
    ledger.fleet.stage_import("second", 0, payload)
    for _ in range(2):
        with pytest.raises(BadInput, match=sentence):
            ledger.fleet.commit_import("second", 1, "tpm", NOW)
    assert everything(tool) == before


HEALTH: dict[str, Any] = {"buffer": {"health": {}}}
ON_T = "policy basis: healthy: does not fit cluster alpha: "


@pytest.mark.parametrize(
    ("own", "default", "change", "refused"),
    [
        (HEALTH, {"basis": "healthy"}, lambda d: d["clusters"].pop(0), ON_T),
        (HEALTH, {"basis": "healthy"}, lambda d: d["clusters"][0].pop("policy"), ON_T),
        (HEALTH, {"basis": "healthy"}, lambda d: d["clusters"][0].update(policy={"buffer": 0.1}), ""),
        ({}, {"basis": "healthy"}, lambda d: d["clusters"].pop(0), ""),
        (HEALTH, {"notice": "2d"}, lambda d: d["clusters"].pop(0), ""),
        ({}, {**HEALTH, "basis": "total"}, lambda d: None, ""),
    ],
    ids=["not named", "named without it", "named with another", "no such policy", "of no matter", "a sound default"],
)
def test_a_default_policy_that_a_cluster_makes_no_sense_on_is_refused_and_the_rest_goes_in(
    own: dict[str, Any],
    default: dict[str, Any],
    change: Callable[[dict[str, Any]], object],
    refused: str,
    empty_ledger: Ledger,
    tool: ForeignTool,
) -> None:
    first = fleet()
    first["policy"] = {"notice": "24h"}
    first["clusters"][0]["policy"] = own
    take(empty_ledger, first, "first")
    document = fleet()
    document["policy"] = default
    document["clusters"][0]["policy"] = own
    document["clusters"][1]["quotas"][0]["gpus"] = 31
    change(document)
    outcome = take(empty_ledger, document)
    assert [line.sentence[: len(refused)] for line in outcome.of(Verb.REFUSED)] == ([refused] if refused else [])
    stands = json.loads(tool.rows("SELECT policy FROM fleet")[0][0])
    assert stands == {"notice": "24h", **({} if refused else default)}
    assert tool.rows("SELECT gpus FROM quotas WHERE cluster = 'beta'") == [(31,)]
    assert empty_ledger.fleet.senseless() == {}
    for cluster in ("alpha", "beta"):
        empty_ledger.registry.facts(cluster)


def test_a_default_policy_that_makes_no_sense_with_what_the_file_leaves_out_is_refused(
    empty_ledger: Ledger, tool: ForeignTool
) -> None:
    document = fleet()
    for cluster in document["clusters"]:
        cluster["policy"] = {"buffer": 0.1, "basis": "total"}
    document["policy"] = {"basis": "healthy"}
    take(empty_ledger, document, "first")
    document["policy"] = HEALTH
    (line,) = take(empty_ledger, document).of(Verb.REFUSED)
    assert "does not fit values that the ledger has and the file does not: " in line.why
    assert tool.rows("SELECT policy FROM fleet") == [('{"basis":"healthy"}',)]


@pytest.mark.parametrize("way", ["dry run", "refused", "malformed", "refused by the database"])
def test_an_import_that_wrote_nothing_keeps_its_answer_and_no_secrets(
    way: str, ledger: Ledger, tool: ForeignTool
) -> None:
    """A caller who lost the first answer asks again and gets the same; parts with contacts' secrets are gone."""
    document = fleet(a=101)
    document["teams"] = [{"name": "b", "contacts": ["slack://***" if way == "refused" else "slack://T/B/ToKeN"]}]
    if way == "malformed":
        document["clusters"][0]["quotas"][0]["gpus"] = -1
    if way == "refused by the database":
        document["clusters"][0]["quotas"][0]["gpus"] = 10_000_001
    terms = ImportTerms(whole=True, dry_run=way == "dry run")
    before = everything(tool)
    stage(ledger, document, "second")
    answers: list[Any] = []
    for _ in range(2):
        try:
            answers.append(ledger.fleet.take_import("second", 2, terms, "tpm", NOW).model_dump(mode="json"))
        except (Refusal, BadInput) as error:
            answers.append(f"{type(error).__name__}: {error.message}")
        assert tool.rows("SELECT part FROM import_parts") == []
    assert answers[0] == answers[1]
    assert "the upload is incomplete" not in str(answers[0])
    assert "ToKeN" not in str(tool.rows("SELECT * FROM import_answers"))
    assert everything(tool) == before
    assert take(ledger, fleet(a=98), "second").done, "staged anew, it is taken"
    assert tool.gpus()["a"] == 98


@pytest.mark.parametrize("parts", [1, 3, 0])
def test_an_import_with_another_number_of_parts_is_refused(parts: int, ledger: Ledger) -> None:
    for part in range(2):
        ledger.fleet.stage_import("second", part, b"x")
    with pytest.raises(BadInput, match=r"it should have \d parts?, and the ledger has parts 0, 1: import again"):
        ledger.fleet.commit_import("second", parts, "tpm", NOW)


def test_a_part_that_comes_again_replaces_the_first(empty_ledger: Ledger) -> None:
    empty_ledger.fleet.stage_import("first", 0, b"nonsense")
    assert import_fleet(empty_ledger, fleet())["clusters"] == 2


def test_parts_that_nobody_commits_are_forgotten_once_nobody_can_countersign_them(
    ledger_url: str, tool: ForeignTool
) -> None:
    times = iter((NOW, NOW + timedelta(hours=23), NOW + timedelta(hours=26)))
    with Ledger(ledger_url, now=lambda: next(times)) as ledger:
        for import_id in ("old", "young", "new"):
            ledger.fleet.stage_import(import_id, 1, b"x")
    assert tool.rows("SELECT import_id FROM import_parts ORDER BY 1") == [("new",), ("young",)]


def test_clusters_are_shown_in_pages_with_their_open_rollouts(ledger: Ledger) -> None:
    open_rollout(ledger, "r-beta", cluster="beta")
    ((first, nothing),) = ledger.fleet.clusters("", 1)
    ((second, rollout),) = ledger.fleet.clusters(first.name, 5)
    assert (first.name, nothing, second.name) == (CLUSTER, None, "beta")
    assert rollout is not None
    assert (rollout.rollout, rollout.stage) == ("r-beta", "planned")
    assert ledger.fleet.clusters("beta", 5) == ()


def test_present_values_and_latest_health_are_shown(ledger: Ledger, tool: ForeignTool) -> None:
    tool.set("b", 30)  # below its block of 64
    tool.run("UPDATE health_samples SET total_gpus = 300, healthy_gpus = 150, block_gpus = 150 WHERE island = 'X'")
    tool.run("DELETE FROM health_samples WHERE island = 'Y'")
    alpha = shown(ledger)[CLUSTER]
    by_team = {q.team: q for q in alpha.quotas}
    assert (by_team["b"].gpus, by_team["b"].protected_blocks) == (30, ())
    assert [(i.total_gpus, i.healthy_gpus) for i in alpha.islands] == [(200, 150), (200, 0)]


def test_a_cluster_that_others_left_senseless_is_named(ledger: Ledger, tool: ForeignTool) -> None:
    tool.run("UPDATE quotas SET islands = 'nowhere' WHERE team = 'c'")
    alpha, beta = ledger.fleet.describe("", 10)
    assert alpha.spec is None
    assert alpha.wrong.startswith("cluster alpha in the ledger does not make sense: its rows: ")
    assert "islands names 'nowhere', which this cluster does not have (team c)" in alpha.wrong
    assert beta.spec is not None
    assert ledger.quotas.read(CLUSTER).values["c"] == 80


def test_those_without_an_open_rollout_are_a_page_by_themselves(ledger: Ledger, tool: ForeignTool) -> None:
    """However many others stand between them: the page has as many as it may."""
    pairs = (("alpha", True), ("beta", False))
    for opened in ((), ("alpha",), ("beta",), ("alpha", "beta")):
        tool.run("UPDATE clusters SET open_rollout = NULL")
        for name in opened:
            tool.run(f"UPDATE clusters SET open_rollout = 'r-1' WHERE name = '{name}'")
        expected = [name for name, _ in pairs if name not in opened]
        assert [one.name for one in ledger.fleet.describe("", 10, free=True)] == expected
        assert [one.name for one in ledger.fleet.describe("", 1, free=True)] == expected[:1]
        assert [one.name for one in ledger.fleet.describe("alpha", 1, free=True)] == [
            n for n in expected if n > "alpha"
        ]
        assert len(ledger.fleet.describe("", 10)) == 2


@pytest.mark.parametrize(
    ("names", "expected"),
    [((), ["alpha", "beta"]), (("beta",), ["beta"]), (("beta", "gamma"), ["beta"]), (("gamma",), [])],
)
def test_named_clusters_alone_are_read(ledger: Ledger, names: tuple[str, ...], expected: list[str]) -> None:
    assert [one.name for one in ledger.fleet.describe("", 10, names=names)] == expected
    assert [one.name for one in ledger.fleet.describe("alpha", 10, names=names)] == [n for n in expected if n > "alpha"]
