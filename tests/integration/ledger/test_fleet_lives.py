"""A fleet file that lives: what an import leaves alone, takes in, keeps, refuses and removes, by plain SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from activities.adapters.ledger.facade import Ledger
from client.inputs.fleet_yaml_writer import fleet_yaml
from client.inputs.plain_yaml import load
from models.audit_chain import Signature, broken_links
from models.cluster.fleet_export import in_file_order
from models.cluster.import_outcome import FleetOutcome, Verb
from models.cluster.readings import HealthSample
from models.cluster.windows import Declared, Window, WindowKind
from models.errors import BadInput, Refusal
from models.rollout.effects import EffectKind
from tests.integration.ledger.world import (
    CLUSTER,
    NOW,
    ForeignTool,
    fleet,
    import_fleet,
    land,
    minutes,
    note_stage,
    open_rollout,
    set_soft,
    take,
    twice,
    values,
)
from tests.tried import examples
from views.fleet_diff import lost_parts

TABLES = (
    *("clusters", "islands", "quotas", "fleet", "windows", "teams", "contacts", "health_samples", "usage_samples"),
    *("rollouts", "receipts", "audit", "audit_heads", "imports", "import_parts", "requests", "tallies"),
)


def dump(tool: ForeignTool) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(tool.rows(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


def told(outcome: FleetOutcome, *verbs: Verb) -> list[tuple[str, str, str, str, str]]:
    lines = [line for line in outcome.lines if line.verb in verbs]
    return [(line.cluster, line.kind, line.name, line.before, line.after) for line in lines]


def cut_b(ledger: Ledger) -> None:
    """A rollout of alpha has cut b from 120 to 100, for good."""
    open_rollout(ledger)
    set_soft(ledger, 1, ("b", 120, 100))
    land(ledger, EffectKind.HARDEN, 2)


def close(ledger: Ledger) -> None:
    land(ledger, EffectKind.CLOSE, 3)
    note_stage(ledger, "r-1", "closed", ended=True, completed=True)


def without(document: dict[str, Any], *, quota: str = "", cluster: str = "", island: str = "") -> dict[str, Any]:
    alpha = document["clusters"][0]
    alpha["quotas"] = [q for q in alpha["quotas"] if q["team"] != quota]
    alpha["islands"] = [i for i in alpha["islands"] if i["name"] != island]
    document["clusters"] = [c for c in document["clusters"] if c["name"] != cluster]
    return document


# --- what the file leaves out ---------------------------------------------------------------------------


def test_what_the_file_leaves_out_stays_and_is_told(ledger: Ledger, tool: ForeignTool) -> None:
    before = dump(tool)
    document = without(fleet(), quota="b", cluster="beta", island="Y")
    document["clusters"][0] |= {"policy": {}, "quotas": document["clusters"][0]["quotas"][:1], "windows": []}
    document |= {"policy": {"notice": "1d"}, "teams": document["teams"][:1]}
    outcome = take(ledger, document, prune=False)
    after = dump(tool)
    for table in ("clusters", "islands", "quotas", "fleet", "teams", "contacts"):
        assert after[table] == before[table], table
    assert told(outcome, Verb.LEFT_OUT) == [
        ("", "policy", "buffer", "0.15", ""),
        ("", "team", "b", "none", ""),
        *[("alpha", "quota", t, g, "") for t, g in [("b", "120 GPUs"), ("c", "80 GPUs"), ("org", "60 GPUs")]],
        *[("alpha", "quota", t, "30 GPUs", "") for t in ("org-1", "org-2")],
        ("alpha", "island", "Y", "200 GPUs", ""),
        ("alpha", "policy", "buffer", '{"ramp":[0.05,0.1]}', ""),
        ("beta", "cluster", "", "1 quota of 32 GPUs", ""),
    ]
    assert outcome.totals == {Verb.LEFT_OUT: 10, Verb.REMOVED: 1}  # a file's windows are what its last import says


def test_what_stays_may_not_be_floored_above_what_it_is_part_of(ledger: Ledger, tool: ForeignTool) -> None:
    document = fleet(org=60, **{"org-1": 40, "org-2": 20})
    org_1 = next(q for q in document["clusters"][0]["quotas"] if q["team"] == "org-1")
    org_1["minimum_gpus"] = 40
    take(ledger, document)
    before = dump(tool)["quotas"]
    document = without(fleet(org=30, **{"org-2": 20}), quota="org-1")
    (line,) = take(ledger, document, "third").of(Verb.REFUSED)
    assert line.sentence == (
        "cluster alpha: does not fit values that the ledger has and the file does not: minimum_gpus is 40, above the "
        "quota 30 of org, which team org-1 is part of; add them to the file, or remove them from the ledger with "
        "--prune"
    )
    assert dump(tool)["quotas"] == before
    tool.run("UPDATE quotas SET gpus = 30 WHERE team = 'org'")  # as a rollout may leave it
    document = without(fleet(a=99, org=30, **{"org-2": 20}), quota="org-1")
    assert take(ledger, document, "fourth").of(Verb.REFUSED) == (), "the file is not to blame for that"
    assert tool.gpus()["a"] == 99


def test_a_value_that_is_kept_may_not_stand_below_a_floor_that_the_file_raises(
    ledger: Ledger, tool: ForeignTool
) -> None:
    open_rollout(ledger)
    set_soft(ledger, 1, ("org", 60, 40), ("org-1", 30, 20), ("org-2", 30, 20))
    land(ledger, EffectKind.HARDEN, 2)
    close(ledger)
    document = fleet(**{"org-1": 50})
    next(q for q in document["clusters"][0]["quotas"] if q["team"] == "org-1")["minimum_gpus"] = 50
    (line,) = take(ledger, document).of(Verb.REFUSED)
    assert line.sentence == (
        "cluster alpha: does not fit the values that the ledger keeps: minimum_gpus is 50, above the quota 40 of org, "
        "which team org-1 is part of; change the file to fit them"
    )
    assert (tool.gpus()["org"], tool.gpus()["org-1"]) == (40, 20)


def test_pruning_removes_it_all_and_says_so_beforehand(ledger: Ledger, tool: ForeignTool) -> None:
    document = without(fleet(), quota="b", cluster="beta")
    document["teams"] = document["teams"][:1]
    before = dump(tool)
    shown = take(ledger, document, "shown", prune=True, dry_run=True)
    assert dump(tool) == before
    assert told(shown, Verb.REMOVED) == [
        ("", "team", "b", "none", ""),
        ("alpha", "quota", "b", "120 GPUs", ""),
        ("beta", "cluster", "", "1 quota of 32 GPUs", ""),
    ]
    outcome = take(ledger, document, prune=True, agreed=shown.removal)
    assert (outcome.lines, outcome.done, shown.done) == (shown.lines, True, False)
    assert tool.rows("SELECT name FROM clusters") == [("alpha",)]
    assert tool.rows("SELECT count(*) FROM quotas WHERE team = 'b' OR cluster = 'beta'") == [(0,)]
    assert tool.rows("SELECT name FROM teams") == [("a",)]
    assert tool.rows("SELECT count(*) FROM health_samples WHERE cluster = 'beta'") == [(0,)]


def test_what_would_be_removed_must_be_what_was_agreed_to(ledger: Ledger, tool: ForeignTool) -> None:
    document = without(fleet(), quota="b")
    shown = take(ledger, document, "shown", prune=True, dry_run=True)
    tool.run("UPDATE quotas SET gpus = 119 WHERE team = 'b'")
    before = dump(tool)["quotas"]
    with pytest.raises(Refusal, match="remove other things than the preview showed, so nothing was changed"):
        take(ledger, document, prune=True, agreed=shown.removal)
    assert dump(tool)["quotas"] == before


def test_a_section_that_is_not_there_says_nothing_even_to_pruning(ledger: Ledger, tool: ForeignTool) -> None:
    document = fleet()
    del document["teams"], document["policy"]
    before = dump(tool)
    assert not take(ledger, document, prune=True).differs
    assert {t: dump(tool)[t] for t in ("fleet", "teams", "contacts")} == {
        t: before[t] for t in ("fleet", "teams", "contacts")
    }


# --- where Slurm holds the quotas ---------------------------------------------------------------------------


SLURMS = "Slurm holds this value, so a file cannot set it: change it in Slurm"
NO_ACCOUNT = (
    "Slurm had no account of this name with a limit when Backstop last read it: create it in Slurm, with a limit"
)
OF_ALPHA = (
    "SELECT team, gpus, islands, blocks, minimum, parent, namespaces, classes FROM quotas WHERE cluster = 'alpha'"
)
ROWS: dict[str, tuple[Any, ...]] = {
    "a": (100, "X", "", 0, None, None, None),
    "b": (120, None, "64", 10, None, None, None),
    "c": (80, "X", "", 0, None, None, None),
    "org": (60, None, "", 0, None, None, None),
    "org-1": (30, None, "", 0, "org", None, None),
    "org-2": (30, None, "", 0, "org", None, None),
}


def in_slurm(**changes: dict[str, Any]) -> dict[str, Any]:
    """The small fleet, with alpha in Slurm; by team what the file says otherwise."""
    document = fleet()
    alpha = document["clusters"][0]
    alpha["slurm"] = {"connection": "controller"}
    quotas = {quota["team"]: quota for quota in alpha["quotas"]}
    alpha["quotas"] = [
        {"team": team, **quotas.get(team, {}), **changes.get(team, {})} for team in {**quotas, **changes}
    ]
    return document


FILES: dict[str, tuple[dict[str, dict[str, Any]], dict[str, tuple[Any, ...]], list[tuple[str, ...]]]] = {
    # what the file says otherwise, the rows that are others then, the lines that are kept
    "blocks": ({"b": {"protected_blocks": [32, 32]}}, {"b": (120, None, "32,32", 10, None, None, None)}, []),
    "a minimum": ({"c": {"minimum_gpus": 80}}, {"c": (80, "X", "", 80, None, None, None)}, []),
    "islands": ({"c": {"islands": ["Y", "X"]}}, {"c": (80, "X,Y", "", 0, None, None, None)}, []),
    "namespaces": ({"c": {"namespaces": ["lab"]}}, {"c": (80, "X", "", 0, None, "lab", None)}, []),
    "classes": ({"c": {"classes": ["t", "e"]}}, {"c": (80, "X", "", 0, None, None, "t,e")}, []),
    "a value": ({"a": {"gpus": 90}}, {}, [("a", "gpus", "100", "90", SLURMS)]),
    "a value, with a minimum": (
        {"a": {"gpus": 110, "minimum_gpus": 100}},
        {"a": (100, "X", "", 100, None, None, None)},
        [("a", "gpus", "100", "110", SLURMS)],
    ),
    "a value, with a minimum above Slurm's": (
        {"a": {"gpus": 110, "minimum_gpus": 101, "classes": ["t"]}},
        {"a": (100, "X", "", 0, None, None, "t")},
        [
            ("a", "gpus", "100", "110", SLURMS),
            ("a", "minimum_gpus", "0", "101", "floors are above the kept 100"),
        ],
    ),
    "a parent": ({"c": {"parent": "org"}}, {}, [("c", "parent", "none", "org", SLURMS)]),
    "a team": ({"new": {"gpus": 5, "minimum_gpus": 2}}, {}, [("new", "", "none", "5 GPUs", NO_ACCOUNT)]),
}


@pytest.mark.parametrize("what", FILES)
def test_of_slurm_s_quotas_a_file_sets_what_only_a_file_can_say_and_the_rest_is_named(
    what: str, empty_ledger: Ledger, tool: ForeignTool
) -> None:
    import_fleet(empty_ledger, in_slurm())
    changes, changed, kept = FILES[what]
    before = dump(tool)
    dry = take(empty_ledger, in_slurm(**changes), "dry", dry_run=True)
    assert {**dump(tool), "imports": (), "import_parts": ()} == {**before, "imports": (), "import_parts": ()}
    outcome = take(empty_ledger, in_slurm(**changes))
    assert (dry.lines, dry.totals) == (outcome.lines, outcome.totals)
    rows = {team: row for team, *row in tool.rows(OF_ALPHA)}
    assert {team: tuple(row) for team, row in rows.items()} == ROWS | changed
    lines = outcome.of(Verb.KEPT)
    assert [(line.name, line.field, line.before, line.after, line.why) for line in lines] == kept
    assert all(line.path[:3] == ("clusters", 0, "quotas") for line in lines)
    assert outcome.totals.get(Verb.CHANGED, 0) == len(changed)
    assert outcome.counts == {"clusters": 2, "quotas": 7, "added": 0, "changed": len(changed), "removed": 0}
    assert outcome.untouched["quotas"] == 7 - len({*changed, *(line.name for line in lines)} - {"new"})


def test_pruning_takes_no_account_from_slurm_and_says_so(empty_ledger: Ledger, tool: ForeignTool) -> None:
    import_fleet(empty_ledger, in_slurm())
    outcome = take(empty_ledger, without(in_slurm(), quota="c"))
    assert told(outcome, *Verb) == []
    outcome = take(empty_ledger, without(in_slurm(), quota="c"), "third", prune=True)
    assert told(outcome, *Verb) == [("alpha", "quota", "c", "80 GPUs", "none")]
    assert (outcome.totals, outcome.of(Verb.KEPT)[0].why) == ({Verb.KEPT: 1}, SLURMS)
    document = in_slurm()
    del document["clusters"][0]["quotas"]  # the usual file of a cluster in Slurm
    assert told(take(empty_ledger, document, "fourth", prune=True), *Verb) == []
    assert {team: tuple(row) for team, *row in tool.rows(OF_ALPHA)} == ROWS


def test_a_floor_that_makes_no_sense_in_slurm_s_tree_is_refused(empty_ledger: Ledger, tool: ForeignTool) -> None:
    """The file's own tree would bear it: Slurm's has other quotas under this one."""
    import_fleet(empty_ledger, in_slurm())
    document = in_slurm(org={"minimum_gpus": 20})
    alpha = document["clusters"][0]
    alpha["quotas"] = [quota for quota in alpha["quotas"] if quota["team"] == "org"]
    (refused,) = take(empty_ledger, document).of(Verb.REFUSED)
    assert "minimum_gpus is 20 for team 'org', which has sub-quotas" in refused.why
    assert {team: tuple(row) for team, *row in tool.rows(OF_ALPHA)} == ROWS


def test_while_a_rollout_is_open_floors_in_slurm_are_its_own_too(empty_ledger: Ledger, tool: ForeignTool) -> None:
    import_fleet(empty_ledger, in_slurm())
    cut_b(empty_ledger)
    outcome = take(empty_ledger, in_slurm(b={"minimum_gpus": 20}))
    assert told(outcome, Verb.REFUSED) == [("alpha", "quota", "b", "10", "20")]
    outcome = take(empty_ledger, in_slurm(b={"gpus": 119}), "third")
    assert [(line.before, line.after, line.why) for line in outcome.of(Verb.KEPT)] == [
        ("100", "119", "rollout r-1 is open (planned)")
    ]
    assert tool.gpus()["b"] == 100


# --- with rollouts open -----------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_the_file_that_was_imported_can_be_imported_again_and_resets_nothing(
    closed: bool, ledger: Ledger, tool: ForeignTool
) -> None:
    cut_b(ledger)
    if closed:
        close(ledger)
    before, generation = tool.quotas(), tool.generation()
    document = fleet()
    document["teams"][1]["contacts"] = ["mailto:b@example.org"]
    outcome = take(ledger, document)
    assert (tool.quotas(), tool.generation()) == (before, generation)
    assert tool.gpus()["b"] == 100
    assert told(outcome, Verb.KEPT) == [("alpha", "quota", "b", "100", "120")]
    assert told(outcome, Verb.REFUSED) == []
    assert tool.rows("SELECT address FROM contacts WHERE team = 'b'") == [("mailto:b@example.org",)]


def test_once_a_rollout_is_over_the_file_s_value_is_taken_where_that_is_asked(
    ledger: Ledger, tool: ForeignTool
) -> None:
    cut_b(ledger)
    outcome = take(ledger, fleet(), reset=True)
    assert (tool.gpus()["b"], len(outcome.of(Verb.KEPT))) == (100, 1), "not while it is open"
    close(ledger)
    take(ledger, fleet(), "third", reset=True)
    assert tool.gpus()["b"] == 120


@pytest.mark.parametrize(("value", "stands"), [(110, 110), (119, 119), (120, 100)])
def test_once_a_rollout_is_over_any_other_value_is_somebody_s_wish(
    value: int, stands: int, ledger: Ledger, tool: ForeignTool
) -> None:
    cut_b(ledger)
    close(ledger)
    take(ledger, fleet(b=value))
    assert tool.gpus()["b"] == stands


def test_floors_of_a_file_that_the_kept_value_cannot_bear_are_named(ledger: Ledger, tool: ForeignTool) -> None:
    cut_b(ledger)
    close(ledger)
    document = fleet()
    document["clusters"][0]["quotas"][1].update(minimum_gpus=110)
    outcome = take(ledger, document)
    assert [(line.field, line.before, line.after) for line in outcome.of(Verb.KEPT)] == [
        ("gpus", "100", "120"),
        ("minimum_gpus", "10", "110"),
    ]
    assert tool.rows("SELECT gpus, minimum, blocks FROM quotas WHERE team = 'b'") == [(100, 10, "64")]


def test_what_a_grant_gave_is_not_taken_back_by_an_older_file(ledger: Ledger, tool: ForeignTool) -> None:
    land(ledger, EffectKind.GRANT, 1, "request/x", writes=values(("b", 120, 140)))
    outcome = take(ledger, fleet())
    assert tool.gpus()["b"] == 140
    assert [line.why for line in outcome.of(Verb.KEPT)] == [
        "a rollout or a grant has changed this value; --reset takes the value of the file"
    ]


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], tuple[str, str, str, str]]] = {
    "a value": (lambda a: a["quotas"][0].update(gpus=99), ("quota", "a", "100", "99")),
    "a floor": (lambda a: a["quotas"][1].update(minimum_gpus=20), ("quota", "b", "10", "20")),
    "its islands": (lambda a: a["quotas"][2].update(islands=["Y"]), ("quota", "c", "X", "Y")),
    "a new quota": (lambda a: a["quotas"].append({"team": "new", "gpus": 1}), ("quota", "new", "", "1 GPU")),
    "another source": (lambda a: a.update(slurm={}), ("field", "slurm", "none", "{}")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_touches_the_quotas_of_an_open_rollout_is_refused_and_the_rest_goes_in(
    what: str, ledger: Ledger, tool: ForeignTool
) -> None:
    change, refused = REFUSED[what]
    cut_b(ledger)
    alpha = {
        t: sorted(tool.rows(f"SELECT * FROM {t} WHERE {c} = 'alpha'"), key=str)
        for t, c in [("clusters", "name"), ("quotas", "cluster")]
    }
    document = fleet()
    change(document["clusters"][0])
    document["clusters"][0]["gpu_model"] = "H200"  # a cluster goes in whole or not at all
    document["clusters"][1]["quotas"][0]["gpus"] = 40
    document["clusters"].append({**document["clusters"][1], "name": "gamma"})
    outcome = take(ledger, document)
    assert told(outcome, Verb.REFUSED) == [("alpha", *refused)]
    assert outcome.of(Verb.REFUSED)[0].why.endswith("while rollout r-1 is open (planned)")
    assert outcome.of(Verb.REFUSED)[0].path[:2] == ("clusters", 0)
    assert alpha == {
        t: sorted(tool.rows(f"SELECT * FROM {t} WHERE {c} = 'alpha'"), key=str)
        for t, c in [("clusters", "name"), ("quotas", "cluster")]
    }
    assert (tool.gpus("beta"), tool.gpus("gamma")) == ({"a": 40}, {"a": 40})
    assert outcome.counts == {"clusters": 2, "quotas": 2, "added": 1, "changed": 1, "removed": 0}
    with pytest.raises(Refusal, match="alpha"):
        take(ledger, document, "third", whole=True)


def test_installed_gpus_policy_and_windows_of_a_cluster_with_an_open_rollout_go_in(
    ledger: Ledger, tool: ForeignTool
) -> None:
    cut_b(ledger)
    document = fleet()
    alpha = document["clusters"][0]
    alpha["islands"][0]["total_gpus"] = 208
    alpha |= {"policy": {"buffer": 0.1}, "windows": []}
    outcome = take(ledger, document)
    assert tool.one("SELECT total_gpus FROM islands WHERE name = 'X'") == 208
    assert json.loads(tool.one("SELECT policy FROM clusters WHERE name = 'alpha'")) == {"buffer": 0.1}
    assert tool.rows("SELECT * FROM windows") == []
    assert not outcome.of(Verb.REFUSED)


def test_pruning_spares_what_a_rollout_holds(ledger: Ledger, tool: ForeignTool) -> None:
    cut_b(ledger)
    open_rollout(ledger, "r-beta", cluster="beta")
    before = dump(tool)
    outcome = take(ledger, without(fleet(), quota="c", cluster="beta"), prune=True)
    assert told(outcome, Verb.REFUSED) == [
        ("alpha", "quota", "c", "80 GPUs", ""),
        ("beta", "cluster", "", "1 quota of 32 GPUs", ""),
    ]
    assert (dump(tool)["quotas"], dump(tool)["clusters"]) == (before["quotas"], before["clusters"])


# --- health, masks, archive --------------------------------------------------------------------------------


def test_a_file_imported_again_tells_no_health_where_somebody_else_does(ledger: Ledger, tool: ForeignTool) -> None:
    from models.cluster.island import Island

    seen = HealthSample(
        cluster="beta", at=NOW + minutes(2), islands=(Island(name="Z", total_gpus=64, healthy_gpus=40),)
    )
    ledger.fleet.add_health([seen], "exporter")
    outcome = take(ledger, fleet(), now=NOW + minutes(5))
    assert tool.rows("SELECT healthy_gpus FROM health_samples WHERE cluster = 'beta' ORDER BY at") == [(64,), (40,)]
    assert tool.one("SELECT count(*) FROM health_samples WHERE cluster = 'alpha'") == 4
    assert told(outcome, Verb.KEPT) == [("beta", "health", "Z", "40 GPUs", "64 GPUs")]


def test_a_masked_contact_is_the_one_that_stands(ledger: Ledger, tool: ForeignTool) -> None:
    document = fleet()
    document["teams"] = [{"name": "a", "contacts": ["slack://A/B/C", "log"]}]
    take(ledger, document)
    document["teams"] = [{"name": "a", "contacts": ["log", "slack://***"]}, {"name": "b", "contacts": ["slack://***"]}]
    outcome = take(ledger, document, "third")
    assert tool.rows("SELECT team, address FROM contacts ORDER BY team, position") == [
        ("a", "log"),
        ("a", "slack://A/B/C"),
    ]
    assert told(outcome, Verb.REFUSED) == [("", "team", "b", "", "")]
    assert "A/B/C" not in outcome.model_dump_json() + json.dumps(tool.rows("SELECT entry FROM audit"))


HOOK = "slack://T/B/{}"
TWO = [HOOK.format("A"), HOOK.format("B")]


@pytest.mark.parametrize(
    ("said", "stands", "why"),
    [
        (["slack://***", "slack://***"], TWO, ""),
        (
            ["slack://***", "log"],
            TWO,
            "once, but *** can hide 2 contacts of the ledger: write the whole address of the contact",
        ),
        ([HOOK.format("B"), "log"], [HOOK.format("B"), "log"], ""),
        ([HOOK.format("A"), "slack://***"], TWO, ""),
        ([HOOK.format("B"), HOOK.format("C"), "slack://***"], [HOOK.format(x) for x in "BCA"], ""),
        (["slack://***"] * 3, TWO, "hides an address that the ledger lacks"),
        (["log"], ["log"], ""),
    ],
    ids=["both", "one of two", "the other written out", "one beside", "one more", "one too many", "none"],
)
def test_which_of_several_masked_contacts_goes_is_not_guessed(
    said: list[str], stands: list[str], why: str, ledger: Ledger, tool: ForeignTool
) -> None:
    document = fleet()
    document["teams"] = [{"name": "a", "contacts": TWO}]
    take(ledger, document)
    document["teams"] = [{"name": "a", "contacts": said}]
    outcome = take(ledger, document, "third")
    assert [a for (a,) in tool.rows("SELECT address FROM contacts WHERE team = 'a' ORDER BY position")] == stands
    assert [why in line.why for line in outcome.of(Verb.REFUSED)] == ([True] if why else [])


def test_how_a_team_wants_to_be_told_lives_as_its_contacts_do(ledger: Ledger, tool: ForeignTool) -> None:
    document = fleet()
    document["teams"] = [{"name": "a", "contacts": ["log"], "notify": "digest"}, {"name": "b"}]
    (changed,) = told(take(ledger, document, "told"), Verb.CHANGED)
    assert changed[:3] + changed[4:] == ("", "team", "a", "log, notify digest")
    assert [t for t in exported(ledger)["teams"] if t["name"] == "a"] == document["teams"][:1]
    del document["teams"][0]["notify"]
    assert told(take(ledger, document, "silent"), Verb.CHANGED) == []
    document["teams"][1]["notify"] = "breach-only"
    take(ledger, document, "third")
    wants = "SELECT name, notify FROM teams WHERE name IN ('a', 'b') ORDER BY name"
    assert tool.rows(wants) == [("a", "digest"), ("b", "breach-only")]
    pruned = take(ledger, document, "pruned", prune=True)
    assert told(pruned, Verb.CHANGED) == [("", "team", "a", "log, notify digest", "log")]
    assert tool.rows(wants) == [("a", None), ("b", "breach-only")]


def test_an_import_stands_in_the_archive_of_each_cluster_that_it_touches(ledger: Ledger, tool: ForeignTool) -> None:
    document = without(fleet(a=90), quota="c", cluster="beta")
    document["teams"] = document["teams"][:1]
    twice(lambda: take(ledger, document, prune=True))
    entries = {
        cluster: [row.entry for row in ledger.registry.entries_after(cluster, 0, 9)] for cluster in ("alpha", "beta")
    }
    assert [(e.actor, e.text) for e in entries["alpha"]][1:] == [
        ("tpm", "import of fleet.yaml: removed alpha quota c: 80 GPUs; changed alpha quota a: gpus 100 -> 90")
    ]
    assert entries["beta"][-1].data["cluster"]["quotas"] == [{"team": "a", "gpus": 32}]
    assert "removed team b" in ledger.registry.entries_after("(fleet)", 0, 9)[-1].entry.text
    for cluster in ("alpha", "beta", "(fleet)"):
        assert broken_links(ledger.registry.entries_after(cluster, 0, 99), ledger.registry.chain_head(cluster)) == []
    rows = tool.one("SELECT count(*) FROM audit")
    take(ledger, document, "third", prune=True)
    assert tool.one("SELECT count(*) FROM audit") == rows, "nothing differed, so there was nothing to tell"


OWNERS = [f"owner-{n:02d}" for n in range(25)]
SEV = {"kind": "sev", "starts": "2026-12-01T08:00:00Z", "ends": "2026-12-01T10:00:00Z", "reason": "x"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            {"policy": {"owners": OWNERS}},
            {"policy": {"owners": [*OWNERS[:24], "mallory"]}},
            [(Verb.CHANGED, "policy", "owners", "beyond what is shown")],
        ),
        (
            {"windows": [SEV]},
            {"windows": [SEV | {"starts": "2026-12-01T08:00:59Z"}]},
            [
                (Verb.REMOVED, "window", "sev from 2026-12-01 08:00:00Z until 2026-12-01 10:00:00Z: x", ""),
                (Verb.ADDED, "window", "sev from 2026-12-01 08:00:59Z until 2026-12-01 10:00:00Z: x", ""),
            ],
        ),
        (
            {"windows": [SEV]},
            {"windows": [SEV, SEV | {"ends": "2026-12-01T10:00:00.5Z"}]},
            [(Verb.ADDED, "window", "sev from 2026-12-01 08:00Z until 2026-12-01 10:00Z: x", "")],
        ),
        ({"windows": [SEV | {"islands": ["Y", "X"]}]}, {"windows": [SEV | {"islands": ["X", "Y"]}]}, []),
    ],
    ids=["a name beyond those shown", "seconds", "half a second", "islands in another order"],
)
def test_what_is_written_has_its_line_however_much_of_it_is_shown(
    before: dict[str, Any],
    after: dict[str, Any],
    said: list[tuple[Verb, str, str, str]],
    ledger: Ledger,
    tool: ForeignTool,
) -> None:
    document = fleet()
    document["clusters"][0] |= {"policy": {}, "windows": [], **before}
    take(ledger, document, prune=True)
    rows = "SELECT policy FROM clusters", "SELECT starts, ends, islands FROM windows ORDER BY 1, 2"
    stood = [tool.rows(query) for query in rows]
    document["clusters"][0] |= after
    lines = take(ledger, document, "third", prune=True).lines
    assert [(line.verb, line.kind, line.name, line.why) for line in lines] == said
    assert ([tool.rows(query) for query in rows] == stood) == (not said)


# --- taken out, called otherwise ------------------------------------------------------------------------------


def by(key: str = "desk/one") -> Signature:
    return Signature(actor="tpm", at=NOW, key=key, reason="a typo")


def held(ledger: Ledger) -> None:
    """A window by hand, beside that of the fleet file: no file brings it back."""
    window = Window(kind=WindowKind.SEV, starts=NOW, ends=NOW.replace(year=NOW.year + 1), reason="fabric")
    ledger.fleet.declare((Declared(source="hold 1", windows=((CLUSTER, window),)),), "tpm", NOW)


def test_a_cluster_is_removed_once_and_comes_back_by_its_archive(ledger: Ledger, tool: ForeignTool) -> None:
    cut_b(ledger)
    close(ledger)
    tool.run("INSERT INTO requests VALUES ('q', 'alpha', 'a', 'declined', ?, '2026-03-01T12:00:00Z', '{}')", True)
    held(ledger)
    before, quotas = dump(tool), tool.quotas()
    shown = ledger.fleet.remove_cluster(CLUSTER, by(), dry_run=True)
    assert (dump(tool), shown.done, shown.barred) == (before, False, "")
    assert shown.history == {"health samples": 2, "usage samples": 2, "windows": 1, "rollouts": 1}
    other = {"name": "gamma", "islands": [{"name": "m", "total_gpus": 8, "healthy_gpus": 8}]}
    pruned = take(ledger, {"clusters": [other]}, "shown", prune=True, dry_run=True)
    (lost,) = (part.plain for part in lost_parts(pruned) if isinstance(part, Text))
    assert [word for word in shown.history if word not in lost] == []
    answer = twice(lambda: ledger.fleet.remove_cluster(CLUSTER, by(), dry_run=False))
    assert answer == shown.model_copy(update={"done": True})
    assert [
        t for t in TABLES if t not in ("audit", "audit_heads", "requests") and any(CLUSTER in r for r in dump(tool)[t])
    ] == []
    (entry,) = [r.entry for r in ledger.registry.entries_after(CLUSTER, 0, 99) if r.entry.key == "desk/one"]
    assert (entry.text, entry.reason) == (
        "removed: 2 islands, 400 GPUs installed; 6 quotas, 340 GPUs in all",
        "a typo",
    )
    back = in_file_order(entry.data["cluster"])
    assert [list(back), list(back["quotas"][1])] == [
        ["name", "gpu_model", "islands", "policy", "quotas", "windows"],
        ["team", "gpus", "protected_blocks", "minimum_gpus"],
    ]
    take(ledger, {"clusters": [back]}, "back")
    assert tool.quotas() == [(t, g, "hard", *rest) for t, g, _, *rest in quotas]


def a_request(tool: ForeignTool) -> None:
    tool.run("INSERT INTO requests VALUES ('q', 'alpha', 'a', 'asked', ?, '2026-03-01T12:00:00Z', '{}')", False)


BARS: dict[str, tuple[Callable[[Ledger, ForeignTool], object], str]] = {
    "a rollout": (lambda ledger, _: open_rollout(ledger), r"rollout r-1 is open \(planned\): close or abort it first"),
    "a shadow": (lambda ledger, _: open_rollout(ledger, shadow=True), "rollout r-1 is open"),
    "a request": (
        lambda _, tool: a_request(tool),
        "1 request for more quota in it is open: see `backstop request list`",
    ),
    "what was freed": (
        lambda _, tool: tool.run("UPDATE clusters SET reserve_limit = 5, reserved_by = 'r-0' WHERE name = 'alpha'"),
        "the lost rollout r-0 still reserves",
    ),
}


@pytest.mark.parametrize("renamed", [False, True], ids=["removed", "renamed"])
@pytest.mark.parametrize("what", BARS)
def test_what_is_under_way_keeps_a_cluster_as_it_is(
    what: str, renamed: bool, ledger: Ledger, tool: ForeignTool
) -> None:
    bring_about, why = BARS[what]
    bring_about(ledger, tool)
    before = dump(tool)
    call = (
        partial(ledger.fleet.rename_cluster, CLUSTER, "omega")
        if renamed
        else partial(ledger.fleet.remove_cluster, CLUSTER)
    )
    with pytest.raises(Refusal, match=f"alpha stays as it is: .*{why}"):
        call(by(), dry_run=False)
    assert dump(tool) == before


def test_a_cluster_is_renamed_with_its_history_and_the_archive_leads_from_one_to_the_other(
    ledger: Ledger, tool: ForeignTool
) -> None:
    cut_b(ledger)
    close(ledger)
    tool.run("UPDATE clusters SET source = '{}', health_source = '{\"connection\":\"p\"}' WHERE name = 'alpha'")
    tool.run(
        "INSERT INTO requests VALUES ('q', 'alpha', 'a', 'x', ?, '2026-03-01T12:00:00Z', ?)",
        True,
        '{"ask":{"cluster":"alpha"}}',
    )
    held(ledger)
    along = ("islands", "quotas", "health_samples", "usage_samples", "windows", "rollouts", "receipts", "requests")
    before = {table: tool.one(f"SELECT count(*) FROM {table} WHERE cluster = 'alpha'") for table in along}
    quotas = tool.quotas()
    answer = twice(lambda: ledger.fleet.rename_cluster(CLUSTER, "omega", by(), dry_run=False))
    assert answer.done
    assert answer.history["windows"] == before["windows"] == 2, "the file's own goes along too"
    assert {t: tool.one(f"SELECT count(*) FROM {t} WHERE cluster = 'omega'") for t in along} == before
    assert {t: tool.one(f"SELECT count(*) FROM {t} WHERE cluster = 'alpha'") for t in along} == dict.fromkeys(along, 0)
    assert tool.quotas("omega") == quotas
    sources = tool.rows("SELECT source, health_source FROM clusters WHERE name = 'omega'")
    assert [json.loads(text) for text in sources[0]] == [{"cluster": "alpha"}, {"cluster": "alpha", "connection": "p"}]
    assert json.loads(tool.one("SELECT state FROM requests")) == {"ask": {"cluster": "omega"}}
    texts = [ledger.registry.entries_after(c, 0, 99)[-1].entry.text for c in ("alpha", "omega")]
    assert texts == [
        "renamed to omega: later entries are under that name",
        "renamed from alpha: earlier entries are under that name",
    ]
    assert broken_links(ledger.registry.entries_after("omega", 0, 99), ledger.registry.chain_head("omega")) == []
    open_rollout(ledger, "r-2", cluster="omega")
    with pytest.raises(BadInput, match="the ledger already has a cluster 'beta'"):
        ledger.fleet.rename_cluster("omega", "beta", by("desk/two"), dry_run=True)


# --- out again -------------------------------------------------------------------------------------------------


def exported(ledger: Ledger) -> dict[str, Any]:
    """The ledger as a fleet file, a cluster a page, through the file's own form."""
    pages = [ledger.fleet.fleet_page("", 1)]
    while pages[-1].last:
        pages.append(ledger.fleet.fleet_page(pages[-1].last, 1))
    teams = [t.model_dump(mode="json", exclude_defaults=True) for t in pages[0].teams]
    document = {"policy": pages[0].policy, "clusters": [c for p in pages for c in p.clusters], "teams": teams}
    found: dict[str, Any] = load(fleet_yaml(document), "export")
    return found


SAME = {
    "clusters": "name, gpu_model, gpus_per_node, policy, source, health_source",
    "islands": "cluster, name, total_gpus",
    "quotas": "cluster, team, gpus, islands, blocks, minimum, parent, namespaces, classes",
    "fleet": "id, policy",
    "windows": "cluster, kind, starts, ends, reason, islands, gpus, source",
    "teams": "name, notify",
    "contacts": "team, position, address",
    "health_samples": "cluster, island, total_gpus, healthy_gpus, block_gpus",
}


def as_said(tool: ForeignTool) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(tool.rows(f"SELECT {columns} FROM {table}"), key=repr) for table, columns in SAME.items()}


def emptied(tool: ForeignTool) -> None:
    for table in ("health_samples", "usage_samples", "windows", "quotas", "islands", "clusters", "contacts", "teams"):
        tool.run(f"DELETE FROM {table}")
    tool.run("UPDATE fleet SET policy = '{}'")


@pytest.mark.fuzzed
def test_an_export_brings_an_empty_ledger_to_the_same_rows(empty_ledger: Ledger, tool: ForeignTool) -> None:
    numbers = iter(range(10**6))

    @settings(max_examples=examples(25), deadline=None)
    @given(document=fleets())
    def tries(document: dict[str, Any]) -> None:
        emptied(tool)
        take(empty_ledger, document, f"in-{next(numbers)}", whole=True)
        wanted = as_said(tool)
        out = exported(empty_ledger)
        again = take(empty_ledger, out, f"again-{next(numbers)}", prune=True)
        assert (again.differs, as_said(tool) | {"health_samples": []}) == (False, wanted | {"health_samples": []})
        emptied(tool)
        take(empty_ledger, out, f"out-{next(numbers)}", whole=True)
        assert as_said(tool) == wanted

    tries()


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    """Small fleets with all that a file may say, and names that YAML reads as something else."""
    names = st.sampled_from(["a", "010", "no", "1e3", "é ", "x: y", "#t", "'"])

    def cluster(name: str) -> dict[str, Any]:
        islands = draw(st.lists(st.sampled_from(["X", "Y", "0x1"]), min_size=1, max_size=3, unique=True))
        teams = draw(st.lists(names, max_size=4, unique=True))
        some = st.none() | st.lists(st.sampled_from(islands), min_size=1, unique=True)
        quotas = []
        for number, team in enumerate(teams):
            gpus = draw(st.integers(8, 99))
            tree = number and draw(st.booleans())
            floors = {
                "protected_blocks": draw(st.lists(st.integers(1, 2), max_size=3)),
                "minimum_gpus": draw(st.integers(0, 8)),
            }
            quota = {"team": team, "gpus": gpus, "islands": draw(some), **floors}
            quota["classes"] = draw(st.none() | st.lists(st.sampled_from(["z", "010", "a b"]), unique=True))
            quota["namespaces"] = draw(st.none() | st.lists(st.sampled_from(["n", "m"]), unique=True))
            quotas.append({"team": team, "gpus": gpus, "parent": teams[0]} if tree else quota)
        if any("parent" in quota for quota in quotas):
            quotas[0] = {"team": teams[0], "gpus": 99}
        window = {
            "kind": "sev",
            "starts": "2026-03-02T00:00:00.000007Z",
            "ends": "9999-12-31T23:59:59Z",
            "reason": "é: #",
        }
        return {
            "name": name,
            "gpu_model": draw(st.none() | names),
            "gpus_per_node": draw(st.sampled_from([4, 8])),
            "islands": [
                {
                    "name": i,
                    "total_gpus": 64,
                    "healthy_gpus": draw(st.integers(8, 64)),
                    "block_gpus": draw(st.none() | st.just(8)),
                }
                for i in islands
            ],
            "policy": draw(
                st.sampled_from([{}, {"buffer": 0.07, "notice": "90m"}, {"buffer": {"ramp": [0.01, "0.1"]}}])
            ),
            "quotas": quotas,
            "windows": draw(st.lists(st.just(window), max_size=1)),
            "prometheus": draw(st.none() | st.just({"connection": "é"})),
            "git": draw(st.none() | st.just({"repository": "/srv/é.git", "path": "é/q.yaml", "pointers": {"a": "/a"}})),
        }

    document: dict[str, Any] = {
        "clusters": [cluster(n) for n in draw(st.lists(names, min_size=1, max_size=3, unique=True))]
    }
    document["teams"] = [
        {"name": n, "contacts": draw(st.lists(st.sampled_from(["log", "a@x.org"]), max_size=2))}
        for n in draw(st.lists(names, max_size=3, unique=True))
    ]
    return document | draw(st.sampled_from([{}, {"policy": {"buffer": 0.2, "owners": ["no"]}}]))
