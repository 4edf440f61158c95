"""Classes as QOS: what Slurm must be set to, and what of its answers is believed."""

from __future__ import annotations

import pytest

from activities.adapters.slurm.class_qos import (
    ClassOf,
    Qos,
    Site,
    TeamClasses,
    Wanted,
    absent,
    by_hand,
    commands_to_bring,
    config_in,
    defaults_in,
    list_missing_settings,
    named_classes,
    ours,
    qos_there,
    too_low,
    wanted_classes,
    write_removals,
)
from models.cluster.sources import SlurmSource

SOURCE = SlurmSource()
# As 22.05.8 prints it, with what somebody may write beside it.
CONFIG = """\
Configuration data as of 2026-11-23T08:49:00
AccountingStorageEnforce = associations,limits,qos
AccountingStorageTRES   = cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpu:h100
JobSubmitPlugins        = PreemptType = preempt/none
PreemptMode             = REQUEUE
PreemptType             = preempt/qos
PriorityType            = priority/multifactor
PriorityWeightQOS       = 10000
PreemptType             = preempt/none

Slurmctld(primary) at localhost is UP
"""


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("", "", []),
        ("PreemptMode             = REQUEUE", "PreemptMode = GANG,SUSPEND", []),
        ("associations,limits,qos", "all", []),
        ("associations,limits,qos", "associations,qos,safe", []),
        ("= preempt/qos\n", "= preempt/none\n", ["PreemptType=preempt/qos (it has preempt/none)"]),
        ("= REQUEUE", "= OFF", ["PreemptMode=REQUEUE (or CANCEL) (it has OFF)"]),
        ("/multifactor", "/basic", ["PriorityType=priority/multifactor (it has priority/basic)"]),
        ("= 10000", "= 0", ["PriorityWeightQOS above 0 (it has 0)"]),
        ("PriorityWeightQOS       = 10000\n", "", ["PriorityWeightQOS above 0 (it has none)"]),
        (
            "associations,limits,qos",
            "associations,limits",
            ["AccountingStorageEnforce=associations,limits,qos (it has associations,limits)"],
        ),
        (
            "gres/gpu,gres/gpu:h100",
            "gres/gpu:h100",
            ["gres/gpu in AccountingStorageTRES (it has cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu:h100)"],
        ),
    ],
)
def test_what_slurm_conf_lacks_is_named_with_what_it_has(line: str, instead: str, said: list[str]) -> None:
    assert line in CONFIG
    assert list_missing_settings(config_in(CONFIG.replace(line, instead, 1)), SOURCE) == said


def test_where_slurm_tells_nothing_of_its_settings_all_are_lacking() -> None:
    assert len(list_missing_settings(config_in("slurm_load_ctl_conf error"), SOURCE)) == 6


def test_a_row_of_a_qos_is_read_whole_and_one_that_is_none_is_left_out() -> None:
    printed = """\
100|00:00:00|cluster||flex|normal|Normal QOS default
99|1-02:03:04|REQUEUE|cpu=5,gres/gpu=16|flex,x|h100-a-engines|backstop: engines of a under root in h100
99|soon|requeue|||odd|backstop: engines of b under root in h100
|||||
5|00:00:00|cluster|||theirs|backstop: engines of c under root in other | under root in h100
6|00:00:00|cluster|||elsewhere|backstop: engines of c under org in h100
"""
    there = qos_there(printed, "gres/gpu")
    site = Site("H100", there, {}, SOURCE)
    assert there["h100-a-engines"] == Qos(
        "backstop: engines of a under root in h100", 99, frozenset({"flex", "x"}), "requeue", 26 * 3600 + 184, 16
    )
    assert sorted(there) == ["elsewhere", "h100-a-engines", "normal", "theirs"]
    assert sorted(ours(site)) == ["h100-a-engines", "theirs"], "by its description alone"


def test_an_account_that_is_told_of_twice_is_believed_neither_time() -> None:
    printed = "normal|flex,normal|a\n|normal|b\nevil|evil|b\n|normal|c d\n||\n"
    assert {a: d.qos for a, d in defaults_in(printed).items()} == {"a": "normal", "c d": "normal"}


def test_a_name_that_two_classes_would_have_is_neither_s() -> None:
    teams = {"a": TeamClasses(("b-c", "x"), 0), "a-b": TeamClasses(("c", "X"), 0)}
    assert named_classes("H100", teams) == {"h100-a-x": ClassOf("a", "x"), "h100-a-b-x": ClassOf("a-b", "X")}


def of_one_team(*classes: str, there: dict[str, Qos], default: str = "normal", gpus: int = 24) -> tuple[Wanted, Site]:
    site = Site("h100", there, defaults_in(f"{default}|normal|a"), SOURCE)
    return wanted_classes(site, {"a": TeamClasses(classes, 16)}, {"a": gpus}), site


def test_the_strongest_is_nobody_s_better_and_each_weaker_one_stands_a_step_behind() -> None:
    normal = Qos("", 1, frozenset({"flex"}))
    wanted, _ = of_one_team("t", "e", "g", there={"normal": normal})
    assert [(n, q.priority, sorted(q.preempts), q.gpus) for n, q in wanted.qos.items()] == [
        ("h100-a-g", 0, ["flex"], 8),
        ("h100-a-e", 0, ["flex", "h100-a-g"], 8),
        ("h100-a-t", 1, ["flex", "h100-a-e", "h100-a-g"], None),
    ]


@pytest.mark.parametrize(
    ("priority", "classes", "least"),
    [(0, "te", 1), (1, "te", None), (1, "teg", 2), (2, "teg", None), (100, "te", None), (0, "t", None)],
)
def test_a_default_without_room_below_it_makes_no_weaker_class_wait(
    priority: int, classes: str, least: int | None
) -> None:
    wanted, site = of_one_team(*classes, there={"normal": Qos("", priority)})
    assert too_low(wanted, site) == ({} if least is None else {"normal": least})
    all_apart = len({q.priority for q in wanted.qos.values()}) == len(wanted.qos)
    assert all_apart == (least is None)


@pytest.mark.parametrize(
    ("description", "advice"),
    [
        (
            "",
            (
                "hand the QOS over to Backstop with sacctmgr modify qos h100-a-e set "
                "description='backstop: e of a under root in h100'"
            ),
        ),
        (
            "backstop: e of b-a under org in h100-b",
            "Backstop already uses the QOS h100-a-e for e of b-a under org in h100-b: rename class 'e'",
        ),
    ],
)
def test_a_qos_of_another_backstop_s_is_not_to_be_handed_over(description: str, advice: str) -> None:
    wanted, _ = of_one_team("t", "e", there={"h100-a-e": Qos(description)})
    assert advice in wanted.walls["a"]
    assert ("hand the QOS over" in wanted.walls["a"]) == (not description)


def test_an_account_that_is_more_than_a_word_goes_into_no_description() -> None:
    source = SlurmSource(root="o' Priority=9000 x='")
    site = Site("h100", {}, defaults_in("normal|normal|a"), source)
    wanted = wanted_classes(site, {"a": TeamClasses(("t", "e"), 0)}, {"a": 8})
    assert wanted.qos == {}
    assert wanted.walls["a"].startswith("the account \"o' Priority=9000 x='\" cannot be part of a QOS name: ")


def test_what_an_administrator_would_type_makes_a_qos_that_is_not_backstop_s() -> None:
    normal = {"normal": Qos("", 100, frozenset({"flex"}))}
    wanted, site = of_one_team("t", "e", there=normal)
    assert by_hand("a", wanted, site) == [
        "sacctmgr -i add qos h100-a-e,h100-a-t",
        (
            "sacctmgr -i modify qos h100-a-e set Preempt=flex Priority=99 PreemptMode=requeue GraceTime=0 "
            "MaxTRESPerAccount=gres/gpu=8"
        ),
        (
            "sacctmgr -i modify qos h100-a-t set Preempt=flex,h100-a-e Priority=100 PreemptMode=cluster GraceTime=0 "
            "MaxTRESPerAccount=gres/gpu=-1"
        ),
        "sacctmgr -i modify account a cluster=h100 set qos+=h100-a-e,h100-a-t",
    ]
    teams = {"a": TeamClasses(("t", "e"), 16), "b": TeamClasses(("t",), 0)}
    assert absent(site, teams) == ["a"]
    made = {**normal, "h100-a-t": Qos("ours"), "h100-a-e": Qos("ours")}
    may = Site("h100", made, defaults_in("normal|normal,h100-a-e,h100-a-t|a"), SOURCE)
    assert absent(may, {"a": teams["a"]}) == []
    assert absent(Site("h100", made, defaults_in("normal|normal,h100-a-e|a"), SOURCE), {"a": teams["a"]}) == ["a"]


def test_a_block_that_a_breach_has_left_larger_than_its_quota_leaves_engines_nothing() -> None:
    wanted, _ = of_one_team("t", "e", there={}, gpus=8)
    assert wanted.qos["h100-a-e"].gpus == 0


def test_an_account_whose_jobs_are_engines_unless_they_say_so_is_measured_by_the_standard() -> None:
    there = {"normal": Qos("", 100, frozenset({"flex"})), "h100-a-e": Qos("backstop: e of a under root in h100", 3)}
    wanted, _ = of_one_team("t", "e", there=there, default="h100-a-e")
    assert wanted.qos["h100-a-t"].priority == 100


def test_what_is_as_it_should_be_is_not_written_again_and_a_list_is_never_emptied() -> None:
    normal = {"normal": Qos("", 100)}
    wanted, site = of_one_team("t", "e", there=normal)
    before = {
        **wanted.qos,
        "h100-a-e": Qos("backstop: e of a under root in h100", 99, frozenset({"flex"}), "requeue", 0, 8),
    }
    _, stands = of_one_team("t", "e", there={**normal, **before})
    assert commands_to_bring(wanted, stands) == {
        "a": ([], ["modify account a cluster=h100 set qos+=h100-a-e,h100-a-t"])
    }
    assert [len(part) for part in commands_to_bring(wanted, site)["a"]] == [2, 3]


def test_a_qos_in_use_stays_without_effect_and_the_others_go() -> None:
    _, site = of_one_team("t", "e", there={})
    mine = {
        "h100-a-t": Qos("backstop: t of a under root in h100", 100, frozenset({"h100-a-e"})),
        "h100-a-e": Qos("backstop: e of a under root in h100", 99, frozenset({"flex"}), "requeue", 5, 8),
    }
    assert write_removals(mine, {"h100-a-t", "normal"}, site) == [
        "modify qos h100-a-t set Preempt= Priority=100 PreemptMode=cluster GraceTime=0 MaxTRESPerAccount=gres/gpu=-1",
        "remove qos h100-a-e",
    ]
