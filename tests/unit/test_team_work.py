"""The next jobs of a team to yield, by class: in flex, plans, breaches and notices, against sums by hand."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.notices.rendering import render
from cli.output import _plain
from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn, first_to_go
from models.cluster.latest_readings import Evidence
from models.cluster.policy import Policy, Tier
from models.cluster.quota import Quota
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.cluster.snapshot import Snapshot
from models.cluster.team_work import team_work
from models.flex.flex_now import flex_now
from models.notices import NoticeKind
from models.planning.busy_work import cut_of_work, short_of_work
from models.planning.plan import Plan, make_plan
from models.rollout.stages import Stage
from tests.tried import examples
from tests.unit.pure_world import World, quota
from views.flex import cluster_parts
from views.plan import plan_parts
from views.status import status_parts

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
CLASSES = ("training", "engines")


def job(name: str, gpus: int, job_class: str | None = None, hours: float = 1, **more: Any) -> Job:
    fields = {"job": name, "team": "research", "gpus": gpus, "job_class": job_class, **more}
    return Job.model_validate({"started": NOW - hours * timedelta(hours=1), **fields})


def said(parts: Any) -> str:
    return "\n".join(line for part in parts for line in _plain(part))


# The worked case of docs/design.md, with 310 of 345 in use: 39 are cut, 4 of them busy.
ENGINES = [job("e1", 24, "engines"), job("e2", 12, "engines"), job("e3", 4, "engines")]
TRAINING = [job("t1", 256, "training"), job("t2", 14)]


def worked(*jobs: Job, classes: tuple[str, ...] | None = CLASSES, scheduled: int = 310, **more: Any) -> Snapshot:
    quota = Quota(team="research", gpus=345, scheduled_gpus=310, idle_gpus=0, **more)
    blocks = {"research": sum(more.get("protected_blocks", ()))}
    work = team_work(jobs, {"research": classes or ()}, {"research": scheduled}, blocks)
    island = Island(name="main", total_gpus=361, healthy_gpus=319)
    return Snapshot(cluster="h100", islands=(island,), quotas=(quota,), work=work)


def planned(snapshot: Snapshot, buffer: str = "0.15") -> Plan:
    return make_plan(snapshot, Policy(buffer=Fraction(buffer)))


@pytest.mark.parametrize(
    ("jobs", "buffer", "sentence"),
    [
        (ENGINES + TRAINING, "0.15", "3 jobs of class engines hold 40 of the 310 GPUs that could yield."),
        (TRAINING + ENGINES[:1] + [job("e4", 16, "engines")], "0.15", "2 jobs of class engines hold 40 of the 310"),
        (
            [job("e", 40, "engines"), job("t", 270, "training")],
            "0.15",
            "1 job of class engines holds 40 of the 310 GPUs that could yield.",
        ),
        # At most 180 may be: 130 of those in use go, and engines have 40.
        (ENGINES + TRAINING, "0.5", "hold 40 of the 310 GPUs that could yield; beyond them class training yields."),
        ([job("t", 310, "training")], "0.15", "1 job of class training holds 310 of the 310 GPUs that could yield."),
        (
            [job("t", 300), job("u", 10, "evals")],
            "0.15",
            "2 jobs of class training (2 of 2 name none of its classes) hold 310 of the 310 GPUs that could yield.",
        ),
        ([job("t", 310)], "0.15", "1 job of class training (it names none of its classes) holds 310 of the 310"),
        (
            [job("t", 300, "training"), job("u", 10)],
            "0.15",
            "2 jobs of class training (1 of 2 names none of its classes) hold 310 of the 310 GPUs that could yield.",
        ),
    ],
)
def test_a_cut_of_gpus_in_use_says_whose_work_stands_on_them(jobs: list[Job], buffer: str, sentence: str) -> None:
    assert sentence in said(plan_parts(planned(worked(*jobs), buffer)))


ISSUE = [job("t1", 252, "training"), job("t2", 18, "training"), job("e", 40, "engines")]


@pytest.mark.parametrize(
    ("jobs", "blocks", "gpus", "sentence"),
    [
        (ISSUE, (252,), 13, "1 job of class engines holds 40 of the 58 GPUs that could yield"),
        (ISSUE, (252,), 41, "holds 40 of the 58 GPUs that could yield; beyond them class training yields"),
        (
            ISSUE,
            (252,),
            59,
            (
                "holds 40 of the 58 GPUs that could yield; beyond them class training yields, "
                "and then only its 252 protected GPUs are left"
            ),
        ),
        # Its training holds less than the blocks want: all of that is theirs.
        (
            ISSUE,
            (256, 44),
            41,
            "holds 40 of the 40 GPUs that could yield; beyond them only its 270 protected GPUs are left",
        ),
        ([job("t", 256), job("u", 54)], (256,), 4, "beyond its 256 protected GPUs, 54 could yield"),
        ([job("t", 1, "training"), job("e", 9, "engines")], (1,), 10, "beyond them only its 1 protected GPU is left"),
        ([job("t", 256)], (256,), 4, "all that it runs is protected"),
        ([job("e", 40, "engines")], (252,), 4, "1 job of class engines holds 40 of the 40 GPUs that could yield"),
        (ISSUE, (252,), 311, ""),
    ],
)
def test_what_protected_blocks_hold_could_not_yield(
    jobs: list[Job], blocks: tuple[int, ...], gpus: int, sentence: str
) -> None:
    (work,) = team_work(jobs, {"research": CLASSES}, {"research": 0}, {"research": sum(blocks)})
    under = work.yielding_text(gpus)
    assert under.endswith(sentence)
    assert bool(under) == bool(sentence)


def test_a_plan_a_notice_and_flex_count_what_is_protected_out() -> None:
    plan = planned(worked(*ISSUE, protected_blocks=(252,)))
    sentence = "1 job of class engines holds 40 of the 58 GPUs that could yield."
    assert sentence in said(plan_parts(plan))
    assert cut_of_work(plan, "research") == f"4 GPUs in the cut of research are in use: {sentence}"
    on_flex = job("f", 8, "training", on="flex")
    quota, flex = team_work([*ISSUE, on_flex], {"research": CLASSES}, {}, {"research": 252})
    assert quota.order.endswith("then training, 270 GPUs of 2 jobs, 252 of them protected")
    assert (flex.protected_gpus, "protected_gpus" in flex.model_dump()) == (0, False), "a block stands in quota"


@pytest.mark.parametrize(
    "snapshot",
    [
        worked(),
        worked(*ENGINES),  # 270 of those in use are nobody knows whose
        worked(*ENGINES, *TRAINING, classes=()),
    ],
    ids=["no jobs", "some jobs", "no classes"],
)
def test_where_jobs_or_classes_are_not_known_nothing_is_said(snapshot: Snapshot) -> None:
    plan = planned(snapshot)
    assert (plan.work, "yield" in said(plan_parts(plan))) == ((), False)
    assert "work" not in plan.model_dump_json()


def test_classes_and_jobs_change_no_hash_and_no_number_of_a_plan() -> None:
    plain, with_work = planned(worked()), planned(worked(*ENGINES, *TRAINING))
    own = worked()
    own = own.model_copy(update={"quotas": (own.quotas[0].model_copy(update={"classes": CLASSES}),)})
    assert plain.work == () != with_work.work
    assert len({plan.hash for plan in (plain, with_work, planned(own))}) == 1
    assert len({s.hash for s in (worked(), worked(*ENGINES, *TRAINING), own)}) == 1
    old = plain.model_copy(update={"hash_rule": 1})
    assert old.hash == with_work.model_copy(update={"hash_rule": 1}).hash
    assert plain == with_work.model_copy(update={"work": ()})


ALIKE = [job("a", 256), job("b", 54)]


@pytest.mark.parametrize(
    ("snapshot", "classes", "advice"),
    [
        (worked(*ALIKE, classes=(), protected_blocks=(256,)), (), "research (2 jobs) has a protected block"),
        (
            worked(*(j.model_copy(update={"job_class": "training"}) for j in ALIKE), protected_blocks=(256,)),
            CLASSES,
            "research (2 jobs of class training) has a protected block",
        ),
        (
            worked(*ALIKE, protected_blocks=(256,)),
            CLASSES,
            "research (2 jobs of class training (2 of 2 name none of its classes)) has a protected block",
        ),
        (worked(*ALIKE, classes=()), (), ""),
        (worked(*ENGINES, *TRAINING, protected_blocks=(256,)), CLASSES, ""),
        (worked(job("a", 310), classes=(), protected_blocks=(256,)), (), ""),
    ],
    ids=["no classes", "one of two", "none named", "no block", "two classes", "one job"],
)
def test_a_team_with_a_block_whose_jobs_are_all_alike_is_advised(
    snapshot: Snapshot, classes: tuple[str, ...], advice: str
) -> None:
    plan = make_plan(snapshot, Policy(classes=classes))
    assert plan.advice.startswith(advice)
    assert bool(plan.advice) == bool(advice) == ("Classes)" in said(plan_parts(plan)))


JOBS = st.lists(
    st.builds(
        job,
        st.uuids().map(str),
        st.integers(1, 9),
        st.sampled_from([None, "training", "engines", "evals"]),
        st.integers(1, 50),
        team=st.sampled_from("ab"),
        on=st.sampled_from(["quota", "flex"]),
    ),
    max_size=9,
)


@settings(max_examples=examples(300), deadline=None)
@given(jobs=JOBS, above=st.dictionaries(st.sampled_from("ab"), st.integers(-3, 3)))
def test_inside_a_team_its_weaker_jobs_go_first_and_no_other_teams_place_moves(
    jobs: list[Job], above: dict[str, int]
) -> None:
    plain = first_to_go(jobs, above, {})
    found = first_to_go(jobs, above, {"a": CLASSES})
    assert [j.team for j in found] == [j.team for j in plain]
    assert [j for j in found if j.team == "b"] == [j for j in plain if j.team == "b"]
    own = [j for j in plain if j.team == "a"]
    assert [j for j in found if j.team == "a"] == [
        *(j for j in own if j.job_class == "engines"),
        *(j for j in own if j.job_class != "engines"),
    ]


@settings(max_examples=examples(300), deadline=None)
@given(jobs=JOBS, unseen=st.integers(-2, 2))
def test_what_a_team_s_classes_hold_is_the_sum_of_its_jobs_or_is_not_said(jobs: list[Job], unseen: int) -> None:
    held = Counter(dict.fromkeys("ab", 0))
    for one in jobs:
        held[one.team] += one.gpus
    on_flex = sum(one.gpus for one in jobs if (one.team, one.on) == ("a", RunsOn.FLEX))
    found = team_work(jobs, {"a": CLASSES, "b": ()}, {"a": held["a"] + unseen})
    by_hand = {
        (
            one.team,
            one.on,
            "engines" if one.team == "a" and one.job_class == "engines" else "training" * (one.team == "a"),
        )
        for one in jobs
        if one.team == "b" or unseen <= (0 if one.on is RunsOn.FLEX else -on_flex)
    }
    assert {(w.team, w.on, c.job_class) for w in found for c in w.classes} == by_hand
    for work in found:
        own = [one for one in jobs if (one.team, one.on) == (work.team, work.on)]
        assert (work.gpus, work.jobs) == (sum(one.gpus for one in own), len(own))
        weaker = [one.gpus for one in own if one.job_class == "engines"]
        if weaker and work.team == "a":
            assert (work.classes[0].job_class, work.classes[0].gpus) == ("engines", sum(weaker))


def test_flex_names_who_yields_next_of_each_team_with_classes() -> None:
    jobs = [
        *(*ENGINES, job("t1", 18, "training", hours=9)),
        *(job("s1", 8, "training", on="flex", hours=1), job("s2", 2, "engines", on="flex", hours=30)),
        job("other", 4, team="evals"),
    ]
    quotas = (Present(team="research", gpus=64, classes=CLASSES), Present(team="evals", gpus=8))
    sample = HealthSample(cluster="c1", at=NOW, islands=(Island(name="x", total_gpus=96, healthy_gpus=96),))
    usage = {
        "research": TeamUsage(team="research", scheduled_gpus=58),
        "evals": TeamUsage(team="evals", scheduled_gpus=4),
    }
    reading = QuotaReading(cluster="c1", generation=1, quotas=quotas)
    found = flex_now(Evidence(reading, sample, usage, NOW, jobs))
    assert [j.job for j in found.jobs] == ["s2", "s1"], "the engines, though they are older"
    text = said(cluster_parts(found, []))
    assert (
        "Among the jobs in research's quota, the first to yield is engines, 40 GPUs of 3 jobs; then training, "
        "18 GPUs of 1 job.\n"
        "Among research's jobs on flex, the first to yield is engines, 2 GPUs of 1 job; then training, 8 GPUs of 1 job."
        in text
    )
    assert "evals first" not in text
    assert [(w.team, w.on) for w in found.yields] == [("research", RunsOn.QUOTA), ("research", RunsOn.FLEX)]
    policy = flex_now(Evidence(reading, sample, usage, NOW, jobs, classes=("all",)))
    assert [w.team for w in policy.yields] == ["research", "research"], "one class is none: nothing is weaker"


def bodies(world: World, kind: NoticeKind) -> dict[str, str]:
    """The last notice of this kind to each, as it is read."""
    return {n.audience: render(n)[1] for n in world.sent if n.kind is kind}


def classed_world(busy: int = 100, **policy: Any) -> World:
    """Team a holds 200 and uses all of it, 40 by engines; of b's 161 so many are in use, and nobody knows whose."""

    def before(world: World) -> None:
        world.jobs = [
            *(job(f"e{n}", 20, "engines", team="a") for n in range(2)),
            job("t", 160, "training", team="a"),
        ]

    quotas = (quota("a", 200), quota("b", 161, busy=busy))
    return World(quotas, before=before, classes=["training", "engines"], **policy)


def test_a_breach_tells_its_team_and_the_owner_which_class_stands_on_what_is_missing() -> None:
    world = classed_world(buffer=0, spare_gpus=0, notice="0s", soak_buffered="0s", soak_enforced="0s")
    world.start()
    world.until(Stage.MONITORED)
    world.healthy(300)
    world.wait("5m")
    shown = " ".join(said(status_parts(world.status, world.now)).split())
    world.wait("6m")
    told = bodies(world, NoticeKind.BREACH)
    sentence = (
        "34 of the 200 GPUs that jobs of a hold in quota have no healthy ones behind them: "
        "2 jobs of class engines hold 40 of the 200 GPUs that could yield."
    )
    # 61 of 361 are missing, divided as 200 to 161.
    assert sentence in told["a"]
    assert sentence in told["tpm"]
    assert "yield" not in told["b"]
    assert "yield" not in bodies(world, NoticeKind.ROLLED_BACK)["a"], "what b has unscheduled is cut, and nothing of a"
    assert sentence in bodies(world, NoticeKind.AT_RISK)["a"]
    assert shown.count(sentence.rstrip(".")) == 1


def test_what_a_breach_cuts_of_what_is_in_use_runs_on_and_it_is_told_whose_it_is() -> None:
    world = classed_world(161, buffer=0, spare_gpus=0, notice="0s", soak_buffered="0s", soak_enforced="0s")
    world.start()
    world.until(Stage.MONITORED)
    world.healthy(300)
    world.wait("11m")
    told = bodies(world, NoticeKind.ROLLED_BACK)
    assert "Your quota is now 166 GPUs" in told["a"]
    assert (
        "34 of the 200 GPUs that jobs of a hold are beyond the quota now and run on as flex, which yields first: "
        "2 jobs of class engines hold 40 of the 200 GPUs that could yield." in told["a"]
    )
    assert "yield" not in told["b"]


def test_a_breach_that_touches_nothing_in_use_says_so_and_who_would_yield_next() -> None:
    world = classed_world(buffer=0, spare_gpus=0, notice="0s", soak_buffered="0s", soak_enforced="0s")
    world.usage["a"] = (60, 0)
    world.jobs = [job("e", 40, "engines", team="a"), job("t", 20, "training", team="a")]
    world.start()
    world.until(Stage.MONITORED)
    world.healthy(300)
    world.wait("11m")
    assert (
        "Healthy hardware backs all that a runs in quota; if a loses more GPUs, the first to yield is "
        "engines, 40 GPUs of 1 job; then training, 20 GPUs of 1 job." in bodies(world, NoticeKind.BREACH)["a"]
    )


@pytest.mark.parametrize(
    ("gpus", "backing", "sentence"),
    [
        # 345 are promised: 15 of the 360 that run are beyond it, and go before the 45 that no hardware stands behind.
        (
            (270, 90),
            300,
            (
                "45 of the 345 GPUs that jobs of research hold in quota have no healthy ones behind them; its jobs "
                "hold 15 GPUs beyond the quota, which yield first: 1 job of class engines holds 90 of the 360 "
                "GPUs that could yield"
            ),
        ),
        (
            (300, 46),
            345,
            (
                "healthy hardware backs all that research runs in quota; its jobs hold 1 GPU beyond the quota, which "
                "yields first; if research loses more GPUs, the first to yield is engines, 46 GPUs of 1 job; then "
                "training, 300 GPUs of 1 job"
            ),
        ),
        (
            (300, 45),
            344,
            (
                "1 of the 345 GPUs that jobs of research hold in quota has no healthy one behind it: "
                "1 job of class engines holds 45 of the 345 GPUs that could yield"
            ),
        ),
    ],
)
def test_what_runs_beyond_a_quota_is_not_said_to_be_in_it(gpus: tuple[int, int], backing: int, sentence: str) -> None:
    jobs = [job("t", gpus[0], "training"), job("e", gpus[1], "engines")]
    works = team_work(jobs, {"research": CLASSES}, {"research": sum(gpus)})
    assert short_of_work(works, {"research": backing}, {"research": 345}) == sentence


def test_what_runs_on_flex_accounts_for_nothing_in_quota() -> None:
    jobs = [job("e", 40, "engines"), job("f", 20, "engines", on="flex")]
    found = team_work(jobs, {"research": CLASSES}, {"research": 58})  # whose the other 18 are nobody says
    assert [work.on for work in found] == [RunsOn.FLEX]


def test_of_flex_nothing_is_said_where_no_job_says_its_class() -> None:
    reading = QuotaReading(
        cluster="c1", generation=1, quotas=(Present(team="a", gpus=64, classes=CLASSES), Present(team="b", gpus=8))
    )
    sample = HealthSample(cluster="c1", at=NOW, islands=(Island(name="x", total_gpus=96, healthy_gpus=96),))
    jobs = [job("q", 8, team="a"), job("s", 8, team="a", on="flex")]  # as Slurm tells of flex
    found = flex_now(Evidence(reading, sample, {}, NOW, jobs))
    assert [(w.team, w.on) for w in found.yields] == [("a", RunsOn.QUOTA)]
    said_of_quota = (
        "Among the jobs in a's quota, the first to yield is training, 8 GPUs of 1 job (it names none of its classes)."
    )
    assert said_of_quota in said(cluster_parts(found, []))


def test_a_cut_of_what_is_in_use_tells_its_team_which_class_yields() -> None:
    world = classed_world(buffer=0.3, spare_gpus=0, notice="1d", max_tier="busy")
    world.start()
    plan = world.plans[-1]
    busy = {q.team: sum(c.gpus for c in q.cuts if c.tier is Tier.BUSY) for q in plan.quotas}
    assert 0 < busy["a"] <= 40
    told = bodies(world, NoticeKind.PLANNED)
    assert (
        f"{busy['a']} GPUs in the cut of a are in use: 2 jobs of class engines hold 40 of the 200 GPUs that "
        "could yield." in told["a"]
    )
    assert "yield" not in told["b"]
