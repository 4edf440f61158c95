"""Stories of jobs on flex: what other schedulers published, and each sentence of docs/design.md, "Jobs and flex"."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli.commands.schemas import makers
from cli.main import run
from models.flex.division import FlexDemand
from models.flex.scene import Scene, Waits
from models.flex.simulation import tell_story
from models.flex.story import FlexStory
from models.flex.yielding import Beyond, Running, choose_yielding

ROOT = Path(__file__).parents[2]
STORY = ROOT / "examples" / "flex-story.yaml"


def played(*steps: dict[str, Any], capacity: int = 16, teams: list[dict[str, Any]] | None = None, **more: Any) -> Scene:
    """Return the last scene. Teams a and b have quotas of 4 and 2 unless said otherwise."""
    return scenes(*steps, capacity=capacity, teams=teams, **more)[-1]


def scenes(*steps: dict[str, Any], capacity: int = 16, **more: Any) -> tuple[Scene, ...]:
    teams = more.pop("teams", None) or [{"team": "a", "quota_gpus": 4}, {"team": "b", "quota_gpus": 2}]
    return tell_story(
        FlexStory.model_validate({"capacity_gpus": capacity, "teams": teams, "steps": list(steps), **more})
    )


def submit(job: str, gpus: float, **more: Any) -> dict[str, Any]:
    """The team is the job's first letter."""
    after = more.pop("after", "0s")
    return {"submit": {"job": job, "team": job[0], "gpus": gpus, **more}, "after": after}


def runs(scene: Scene) -> dict[str, str]:
    """Return what each running job runs on."""
    return {j.job: j.on.value for j in scene.running if j.on is not None}


def taken(scene: Scene) -> list[str]:
    return [t.job for t in scene.preempted]


# --- what was published, and each sentence of docs/design.md ------------------------------------------------------

RUN_AI = "Run:ai documentation, quick start: Over Quota, Fairness and Preemption: a1 is preempted, and b has its 2"
KUEUE = "kubernetes-sigs/kueue, pkg/scheduler/preemption/preemption_fair_test.go, TestFairPreemptions, in half CPUs"


def quotas(**of: int) -> list[dict[str, Any]]:
    return [{"team": team, "quota_gpus": gpus} for team, gpus in of.items()]


def admitted(capacity: int, **jobs: int) -> list[dict[str, Any]]:
    """Jobs that all started at the same time."""
    return [{"capacity_gpus": 0}, *(submit(job, gpus) for job, gpus in jobs.items()), {"capacity_gpus": capacity}]


class Story(NamedTuple):
    source: str
    capacity: int
    teams: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    taken: set[str]
    runs: set[str]


SHARED: list[dict[str, Any]] = [
    {"team": "g", "parent": "n"},
    {"team": "b", "parent": "n", "quota_gpus": 8},
    {"team": "c", "quota_gpus": 4},
]
RANKED: list[dict[str, Any]] = [
    {"team": "a", "parent": "n", "quota_gpus": 2, "priority": 5},
    {"team": "b", "parent": "n", "quota_gpus": 2},
    {"team": "d", "parent": "n", "quota_gpus": 4},
]
THREE = quotas(a=6, b=6, c=6)
SINGLES = {f"b{n}": 1 for n in range(8)}
UNITS = {f"a{n}": 2 for n in (1, 2, 3)} | {f"b{n}": 2 for n in (1, 2, 3, 4, 5)} | {"c1": 2}
STORIES = (
    Story(
        RUN_AI,
        4,
        quotas(a=2, b=2),
        [submit("a1", 1), submit("a2", 2), submit("b1", 1), submit("b2", 1)],
        *({"a1"}, {"a2", "b1", "b2"}),
    ),
    Story(
        f"{KUEUE}: preempt one from each CQ borrowing",
        18,
        THREE,
        [*admitted(18, a1=1, a2=1, a3=6, b1=1, b2=1, b3=6), submit("c1", 4)],
        *({"a1", "b1"}, {"a2", "a3", "b2", "b3", "c1"}),
    ),
    Story(
        f"{KUEUE}: reclaim nominal from user using the most",
        18,
        THREE,
        [*admitted(18, **UNITS), submit("c2", 2)],
        *({"b1"}, {*UNITS, "c2"} - {"b1"}),
    ),
    Story(
        f"{KUEUE}: can't preempt when everyone under nominal",
        18,
        THREE,
        [*admitted(18, a1=6, b1=6, c1=6), submit("c2", 2)],
        *(set(), {"a1", "b1", "c1"}),
    ),
    Story(
        f"{KUEUE}: preempt huge workload if there is no other option",
        18,
        THREE,
        [*admitted(18, b1=18), submit("a1", 4)],
        *({"b1"}, {"a1"}),
    ),
    Story(
        "nobody is taken and started again in one step: q1 cannot run, and f1 stays",
        3,
        quotas(q=2, f=0),
        [submit("q1", 2), submit("f1", 1, target="flex"), {"capacity_gpus": 1}],
        *({"q1"}, {"f1"}),
    ),
    Story(
        "a share that can only be met by taking a larger job is met",
        4,
        quotas(a=2, z=0),
        [submit("z2", 2), submit("z1", 1), submit("a3", 3)],
        *({"z2"}, {"z1", "a3"}),
    ),
    Story(
        "a team's own small job never costs its big one",
        3,
        quotas(a=2),
        [submit("a1", 3), submit("a2", 1)],
        *(set(), {"a1"}),
    ),
    Story(
        "inside a namespace a team of higher priority has what siblings borrow beyond quota",
        8,
        RANKED,
        [submit("b1", 2), submit("b2", 4), submit("a1", 2), submit("a2", 4)],
        *({"b2"}, {"b1", "a1", "a2"}),
    ),
    Story(
        "a guest on a sibling's unused quota yields when hardware no longer backs the quotas",
        8,
        SHARED,
        [submit("g1", 8), submit("c1", 4)],
        *({"g1"}, {"c1"}),
    ),
    Story(
        "a job that could never run holds no share",
        4,
        quotas(a=0, b=0, c=0),
        [*admitted(4, c1=1, c2=1, c3=1, c4=1), submit("a1", 5), submit("b1", 2)],
        *({"c1", "c2"}, {"c3", "c4", "b1"}),
    ),
    Story(
        "the furthest above its share, looked at again after each job; then the youngest, then the name",
        8,
        quotas(a=2, b=0, c=0),
        [*admitted(8, b1=1, b2=1, b3=1, b4=1, b5=1, b6=1, c1=2), submit("a1", 2)],
        *({"b1", "b2"}, {"b3", "b4", "b5", "b6", "c1", "a1"}),
    ),
    Story(
        "of equal overshoots the fewest jobs, though they are of who is less far above its share",
        12,
        quotas(a=2, b=0, c=0),
        [*admitted(12, **SINGLES, c1=2, c2=2), submit("a7", 7), submit("a1", 2)],
        *({"c1"}, {*SINGLES, "c2", "a1"}),
    ),
    Story(
        "what is in quota stays, though the share could be filled with jobs for flex alone",
        6,
        quotas(a=1, b=0),
        [submit("a1", 1), submit("a2", 2, target="flex"), submit("a3", 3, target="flex"), submit("b1", 1)],
        *({"a2"}, {"a1", "a3", "b1"}),
    ),
    Story(
        "a tie is never a claim: of three GPUs z keeps two whatever its name",
        3,
        quotas(a=0, z=0),
        [submit("z1", 1), submit("z2", 1), submit("z3", 1), submit("a1", 1), submit("a2", 1)],
        *(set(), {"z1", "z2", "a1"}),
    ),
    Story(
        "a job lies on one GPU or on whole ones: three of 0.6 need three",
        4,
        quotas(a=4, b=4),
        [submit("a1", 0.6), submit("a2", 0.6), submit("a3", 0.6), submit("b1", 1), submit("b2", 1)],
        *(set(), {"a1", "a2", "a3", "b1"}),
    ),
    Story(
        "a GPU is freed by taking all that lie on it, and no more",
        2,
        quotas(a=0, c=1),
        [submit("a1", 0.6), submit("a2", 0.3), submit("a3", 0.6), submit("c1", 1)],
        *({"a3"}, {"a1", "a2", "c1"}),
    ),
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.source[-60:])
def test_a_story_ends_as_it_was_published_or_as_the_design_says(story: Story) -> None:
    last = played(*story.steps, capacity=story.capacity, teams=story.teams)
    assert (set(taken(last)), set(runs(last))) == (story.taken, story.runs)


IN_QUEUE = (
    "kubernetes-sigs/kueue, pkg/scheduler/preemption/preemption_test.go, TestPreemption (LowerPriority in the queue)"
)
RANKS: list[dict[str, Any]] = [{"team": "a", "quota_gpus": 6, "classes": ["high", "mid", "low"]}]


def by_rank(capacity: int, **jobs: tuple[str | None, float]) -> list[dict[str, Any]]:
    """Jobs of these classes that all started at the same time."""
    came = (submit(job, gpus, job_class=rank) for job, (rank, gpus) in jobs.items())
    return [{"capacity_gpus": 0}, *came, {"capacity_gpus": capacity}]


KAI = "kai-scheduler/KAI-Scheduler, pkg/scheduler/actions/preempt/preempt_test.go, TestHandlePreempt"


def kai(what: str, capacity: int, new: dict[str, Any], taken: str, left: str, **running: tuple[str, float]) -> Story:
    """Queues a and b deserve half of it each, or a all of it; build is above interactive, and that above train."""
    queues = sorted({job[0] for job in running} | {new["submit"]["team"]})
    each = 1 if capacity == 1 else capacity // len(queues)
    teams = [{"team": q, "quota_gpus": each, "classes": ["build", "interactive", "train"]} for q in queues]
    return Story(
        f"{KAI}: {what}", capacity, teams, [*by_rank(capacity, **running), new], {*taken.split()}, {*left.split()}
    )


TRAIN, BUILD = ("train", 1), {"job_class": "build"}
OF_KAI = (
    kai(
        "no need to preempt both",
        2,
        submit("a4", 1, **BUILD),
        "a2",
        "a1 a3 a4",
        a1=("train", 0.5),
        a2=TRAIN,
        a3=("train", 0.5),
    ),
    kai("1 train running, 1 build pending", 1, submit("a2", 1, **BUILD), "a1", "a2", a1=TRAIN),
    kai("1 train running, 1 train pending", 1, submit("a2", 1, job_class="train"), "", "a1", a1=TRAIN),
    kai("1 build pending for the different queue", 1, submit("b1", 1, **BUILD), "", "a1", a1=TRAIN),
    kai("2 train running, 1 build with 2 GPUs pending", 2, submit("a3", 2, **BUILD), "a1 a2", "a3", a1=TRAIN, a2=TRAIN),
    kai(
        "2 train of 2 queues require 2 GPUs",
        4,
        submit("a2", 2, **BUILD),
        "a1",
        "a2 b1",
        a1=("train", 2),
        b1=("train", 2),
    ),
    kai("1 train requires 1 GPU, 1 requires 2", 4, submit("a2", 2, **BUILD), "a1", "a2 b1", a1=TRAIN, b1=("train", 2)),
    kai("1 train, 1 interactive running", 2, submit("a3", 1, **BUILD), "a1", "a2 a3", a1=TRAIN, a2=("interactive", 1)),
    kai("1 train running, 1 interactive pending", 1, submit("a2", 1, job_class="interactive"), "a1", "a2", a1=TRAIN),
)

CLASSED = (
    *OF_KAI,
    Story(
        f"{IN_QUEUE}: preempt lowest priority",
        6,
        RANKS,
        [*by_rank(6, a1=("low", 2), a2=("mid", 2), a3=("high", 2)), submit("a4", 2, job_class="high")],
        *({"a1"}, {"a2", "a3", "a4"}),
    ),
    Story(
        f"{IN_QUEUE}: preempt multiple",
        6,
        RANKS,
        [*by_rank(6, a1=("low", 2), a2=("mid", 2), a3=("high", 2)), submit("a4", 3, job_class="high")],
        *({"a1", "a2"}, {"a3", "a4"}),
    ),
    Story(
        f"{IN_QUEUE}: no preemption for low priority",
        6,
        RANKS,
        [*by_rank(6, a1=("low", 3), a2=("mid", 3)), submit("a4", 1, job_class="low")],
        *(set(), {"a1", "a2"}),
    ),
    Story(
        f"{IN_QUEUE}: not enough low priority workloads",
        6,
        RANKS,
        [*by_rank(6, a1=("low", 3), a2=("mid", 3)), submit("a4", 4, job_class="mid")],
        *(set(), {"a1", "a2"}),
    ),
    Story(
        f"{IN_QUEUE}: some free quota, preempt low priority",
        6,
        RANKS,
        [*by_rank(6, a1=("low", 1), a2=("mid", 1), a3=("high", 3)), submit("a4", 2, job_class="high")],
        *({"a1"}, {"a2", "a3", "a4"}),
    ),
    Story(
        f"{IN_QUEUE}: minimal set excludes low priority",
        6,
        RANKS,
        [*by_rank(6, a1=("low", 1), a2=("mid", 2), a3=("high", 3)), submit("a4", 2, job_class="high")],
        *({"a2"}, {"a1", "a3", "a4"}),
    ),
    Story(
        f"{IN_QUEUE}: reclaim quota from borrower",
        12,
        [*RANKS, *quotas(c=6)],
        [*by_rank(12, c1=(None, 3), a1=("mid", 3), a2=("high", 6)), submit("c2", 3)],
        *({"a1"}, {"a2", "c1", "c2"}),
    ),
    Story(
        "engines yield to hardware first, though training would leave less idle, and though they are many",
        10,
        [{"team": "a", "quota_gpus": 10, "classes": ["training", "engines"]}],
        [
            submit("a1", 4, job_class="training"),
            submit("a2", 3, job_class="engines"),
            submit("a3", 3, job_class="engines"),
            {"capacity_gpus": 6},
        ],
        *({"a2", "a3"}, {"a1"}),
    ),
    Story(
        "a job that names no class is as strong as the strongest",
        4,
        [{"team": "a", "quota_gpus": 4, "classes": ["training", "engines"]}],
        [submit("a1", 2), submit("a2", 2, job_class="engines"), submit("a3", 2, job_class="training")],
        *({"a2"}, {"a1", "a3"}),
    ),
    Story(
        "no class of one team takes what another has: b's engines run on beside a's training that waits",
        8,
        [{"team": t, "quota_gpus": 4, "classes": ["training", "engines"]} for t in "ab"],
        [
            submit("a1", 4, job_class="training"),
            submit("b1", 4, job_class="engines"),
            submit("a2", 4, job_class="training"),
        ],
        *(set(), {"a1", "b1"}),
    ),
)


@pytest.mark.parametrize("story", CLASSED, ids=lambda story: story.source[-60:])
def test_inside_a_quota_the_weaker_class_waits_and_yields_first(story: Story) -> None:
    last = played(*story.steps, capacity=story.capacity, teams=story.teams)
    assert (set(taken(last)), set(runs(last))) == (story.taken, story.runs)


def test_who_yields_to_its_own_team_is_told_so_and_who_yields_to_anothers_claim_too() -> None:
    teams: list[dict[str, Any]] = [
        {"team": "a", "quota_gpus": 4, "classes": ["training", "engines"]},
        {"team": "b", "quota_gpus": 4},
    ]
    engines, training = submit("a1", 4, job_class="engines"), submit("a2", 4, job_class="training")
    (gone,) = played(engines, training, capacity=4, teams=teams).preempted
    assert (gone.job, gone.why) == ("a1", "a2 of a is of a stronger class")
    (gone,) = played(engines, training, submit("b1", 4), capacity=8, teams=teams).preempted
    assert (gone.job, gone.why) == ("a1", "b1 runs in the quota of b")


def test_a_class_that_its_team_has_not_is_refused() -> None:
    teams: list[dict[str, Any]] = [{"team": "a", "classes": ["training"]}, {"team": "b"}]
    with pytest.raises(ValueError, match=r"steps.0..submit.job_class is 'dev', but team 'a' has the class training"):
        played(submit("a1", 1, job_class="dev"), teams=teams)
    with pytest.raises(ValueError, match=r"steps.0..submit.job_class is 'dev', but team 'b' has no classes"):
        played(submit("b1", 1, job_class="dev"), teams=teams)


def test_a_job_for_flex_takes_none_of_its_team_s_that_count_in_quota_whatever_their_class() -> None:
    """12 GPUs are full: an engine of 5 in quota, training of 3 for flex, and another team's 4."""
    jobs = [("j0", "a", 5, "both", "engines"), ("j1", "a", 3, "flex", "training"), ("j2", "b", 4, "both", None)]
    steps = [
        {"submit": {"job": job, "team": team, "gpus": gpus, "target": target, "job_class": job_class}}
        for job, team, gpus, target, job_class in [*jobs, ("j3", "a", 1, "flex", "training")]
    ]
    teams = [{"team": "a", "quota_gpus": 5, "classes": ["training", "engines"]}, {"team": "b", "quota_gpus": 0}]
    *_, last = tell_story(FlexStory.model_validate({"capacity_gpus": 12, "teams": teams, "steps": steps}))
    assert (sorted(j.job for j in last.running), last.preempted) == (["j0", "j1", "j2"], ())


def test_a_namespace_that_holds_no_jobs_has_no_classes_of_them() -> None:
    teams = [{"team": "ns", "quota_gpus": 8, "classes": ["training"]}, {"team": "r", "parent": "ns", "quota_gpus": 8}]
    said = (
        r"teams\[0\].classes is \['training'\] for team 'ns', which has children: only teams without children hold jobs"
    )
    with pytest.raises(ValueError, match=said):
        FlexStory.model_validate({"capacity_gpus": 8, "teams": teams, "steps": []})


def test_divide_and_simulate_have_the_same_default_mode() -> None:
    story, demand = (m.model_fields["mode"].default for m in (FlexStory, FlexDemand))
    assert story == demand == "equal"


def test_each_job_that_waits_is_told_why() -> None:
    teams: list[dict[str, Any]] = [
        {"team": "a", "quota_gpus": 2, "limit_gpus": 3},
        {"team": "b", "quota_gpus": 2},
        {"team": "c"},
    ]
    last = played(
        *(submit("a1", 2), submit("b1", 2), submit("c1", 1)),
        *(submit("b8", 8), submit("a2", 2), submit("a4", 4), submit("b2", 1, preemptible=False)),
        *(submit("b3", 3, target="quota"), submit("c2", 1)),
        capacity=5,
        teams=teams,
    )
    held = "b's own jobs have 2 of the 5 GPUs of the cluster, and others have 3, inside their quotas or shares"
    assert {j.job: (j.waits, j.why) for j in last.queued} == {
        "b8": (Waits.TOO_LARGE, "too large: it needs 8 GPUs, and the cluster has 5"),
        "a2": (Waits.LIMIT, "it needs 2 GPUs, and a already uses 2 of its limit of 3 GPUs"),
        "a4": (Waits.LIMIT, "too large for the limit of a, which is 3 GPUs"),
        "b2": (Waits.HARDWARE, f"it needs 1 GPU, none is free, and {held}"),
        "b3": (Waits.NO_QUOTA, "it may run only inside its quota; it needs 3 GPUs, and the quota is 2 GPUs"),
        "c2": (Waits.SHARE, "it needs 1 GPU, none is free, and c has 1, with a share of 1"),
    }
    short = played(submit("a1", 4), submit("b1", 2), capacity=4)
    assert [(j.job, j.waits, j.why) for j in short.queued] == [
        ("b1", Waits.HARDWARE, "it needs 2 GPUs, none is free, and others have 4, inside their quotas or shares")
    ]
    alone = played(submit("a1", 8), submit("a2", 8), capacity=8, teams=[{"team": "a", "quota_gpus": 16}])
    why = "it needs 8 GPUs, none is free, and a's own jobs have all 8 GPUs of the cluster, fewer than its quota of 16"
    assert [(j.waits, j.why) for j in alone.queued] == [(Waits.HARDWARE, why)]


def test_over_quota_fairness_comes_out_as_it_must() -> None:
    last = tell_story(FlexStory.model_validate(yaml.safe_load(STORY.read_text())))[-1]
    rows = {t.team: (int(t.allocated_gpus), t.quota_gpus, t.queued_jobs) for t in last.teams}
    assert rows == {"a": (8, 4, 0), "b": (4, 2, 1), "c": (4, 2, 1), "d": (0, 8, 0)}
    assert last.unused_gpus == 0


def test_a_job_from_where_nobody_may_target_the_quota_is_for_flex_alone_or_refused() -> None:
    teams = [{"team": "a", "quota_gpus": 4, "namespaces": ["lab"]}, {"team": "b", "quota_gpus": 2}]
    named = {"a1": {"namespace": "lab"}, "a2": {"namespace": "other"}, "a3": {"namespace": "a"}}
    scene = played(*(submit(job, 1, **more) for job, more in named.items()), teams=teams)
    assert runs(scene) == {"a1": "quota", "a2": "flex", "a3": "quota"}
    for more in ({"target": "quota"}, {"preemptible": False}):
        steps = [submit("a1", 1, namespace="other", **more), {"delete": "a1"}, submit("a1", 1)]
        first, _, last = tell_story(FlexStory.model_validate({"capacity_gpus": 4, "teams": teams, "steps": steps}))
        assert first.what == "a submits a1 (refused: other may not target the quota of a)"
        assert (first.running, first.queued, runs(last)) == ((), (), {"a1": "quota"})


def test_the_order_in_which_they_ask_does_not_matter_in_the_end() -> None:
    document = yaml.safe_load(STORY.read_text())
    document["steps"].reverse()
    last = tell_story(FlexStory.model_validate(document))[-1]
    assert {t.team: (int(t.allocated_gpus), t.queued_jobs) for t in last.teams} == {
        "a": (8, 0),
        "b": (4, 1),
        "c": (4, 1),
        "d": (0, 0),
    }


def test_who_has_quota_gets_it_back_from_flex_at_once() -> None:
    document = yaml.safe_load(STORY.read_text())
    document["steps"].append(submit("d1", 8))
    last = tell_story(FlexStory.model_validate(document))[-1]
    assert {t.team: t.allocated_gpus for t in last.teams} == {"a": 4, "b": 2, "c": 2, "d": 8}
    assert sorted(taken(last)) == ["a2", "b2", "c2"]
    assert all(t.why == "d1 runs in the quota of d" for t in last.preempted)


def test_a_job_for_quota_alone_waits_rather_than_running_on_flex() -> None:
    """Quota is counted as a sum: a1 leaves it to jobs that may run nowhere else, and runs on as flex."""
    last = played(submit("a1", 3), submit("a2", 2, target="quota"), submit("a3", 3, preemptible=False))
    assert runs(last) == {"a1": "flex", "a2": "quota"}
    assert [(j.job, j.why) for j in last.queued] == [
        (
            "a3",
            (
                "it is not preemptible, so it may run only inside its quota; it needs 3 GPUs, and a has 2 of its "
                "quota of 4 GPUs left"
            ),
        )
    ]
    assert last.unused_gpus == 11


def test_a_job_for_flex_leaves_quota_to_others() -> None:
    assert runs(played(submit("a1", 4, target="flex"), submit("a2", 4))) == {"a1": "flex", "a2": "quota"}


def test_quota_that_becomes_free_takes_in_what_ran_on_flex() -> None:
    last = played(submit("a1", 4), submit("a2", 4), {"delete": "a1"})
    assert (runs(last), taken(last)) == ({"a2": "quota"}, [])


NAMESPACE: list[dict[str, Any]] = [
    {"team": "a", "parent": "n", "quota_gpus": 4},
    {"team": "b", "parent": "n", "quota_gpus": 4},
    {"team": "c", "quota_gpus": 4},
]


def test_siblings_have_each_others_unused_quota_inside_their_namespace_and_no_more() -> None:
    last = played(submit("a1", 4), submit("a2", 4), submit("a3", 4), teams=NAMESPACE)
    assert runs(last) == {"a1": "quota", "a2": "siblings", "a3": "flex"}
    assert [(int(t.in_quota_gpus), int(t.siblings_gpus)) for t in last.teams] == [(4, 4), (0, 0), (0, 0)]


def test_what_runs_on_siblings_quota_is_not_taken_for_anothers_flex() -> None:
    flex_first = (submit("c1", 8, target="flex"), submit("a1", 4), submit("a2", 4))
    last = played(*flex_first, capacity=12, teams=NAMESPACE)
    assert (runs(last), taken(last)) == ({"a1": "quota", "a2": "siblings"}, ["c1"])
    assert last.preempted[0].why == "a2 runs on quota that siblings of a leave unused"
    again = played(*flex_first, submit("c2", 4, target="flex"), capacity=12, teams=NAMESPACE)
    assert runs(again) == {"a1": "quota", "a2": "siblings", "c2": "flex"}


def test_a_sibling_has_its_own_quota_back_and_what_was_on_it_runs_on_as_flex_while_it_can() -> None:
    story = (submit("a1", 4), submit("a2", 4), submit("b1", 4))
    roomy = played(*story, teams=NAMESPACE)
    assert (runs(roomy), taken(roomy)) == ({"a1": "quota", "a2": "flex", "b1": "quota"}, [])
    tight = played(*story, capacity=8, teams=NAMESPACE)
    assert (runs(tight), taken(tight)) == ({"a1": "quota", "b1": "quota"}, ["a2"])


def test_fractions_of_a_gpu_add_up() -> None:
    last = played(*(submit(f"a{n}", 0.3) for n in range(4)), capacity=1, teams=[{"team": "a", "quota_gpus": 1}])
    assert runs(last) == {"a0": "quota", "a1": "quota", "a2": "quota"}
    assert float(last.unused_gpus) == pytest.approx(0.1)


def test_a_limit_holds_though_gpus_are_free() -> None:
    last = played(submit("a1", 3), submit("a2", 3), teams=[{"team": "a", "quota_gpus": 0, "limit_gpus": 5}])
    assert (runs(last), int(last.unused_gpus)) == ({"a1": "flex"}, 13)


def test_a_namespaces_limit_holds_for_all_of_it() -> None:
    teams = [{"team": "n", "limit_gpus": 5}, *({"team": t, "parent": "n", "quota_gpus": 2} for t in "ab")]
    last = played(submit("a1", 3), submit("b1", 2), submit("b2", 1), teams=teams)
    assert (sorted(runs(last)), int(last.unused_gpus)) == (["a1", "b1"], 11)


def test_nobody_is_taken_before_it_has_run_for_min_run_and_its_end_is_acted_on_at_its_time() -> None:
    story = (submit("b1", 8), submit("a1", 4, after="5m"))
    _, early, woken = scenes(*story, capacity=8, min_run="10m")
    assert (runs(early), taken(early)) == ({"b1": "flex"}, [])
    assert (early.queued[0].waits, "until 10m" in early.queued[0].why) == (Waits.PROTECTED, True)
    assert (woken.step, woken.woken, woken.what, str(woken.at)) == (1, True, "b1 has run for 10m", "0:10:00")
    assert (runs(woken), taken(woken)) == ({"a1": "quota"}, ["b1"])
    *_, between, last = scenes(*story, {"capacity_gpus": 9, "after": "1h"}, capacity=8, min_run="10m")
    assert (between.what, runs(last)) == ("b1 has run for 10m", {"a1": "quota"}), "and not at the next step only"
    late = played(*story[:1], submit("a1", 4, after="10m"), capacity=8, min_run="10m")
    assert (runs(late), taken(late)) == ({"a1": "quota"}, ["b1"])


def test_who_was_taken_lately_is_safe_from_claims_on_flex_until_the_window_ends_and_not_from_claims_on_quota() -> None:
    of: dict[str, Any] = {"capacity": 8, "window": "1h", "teams": quotas(a=0, b=0, c=4)}
    first = (submit("b1", 8), submit("c1", 4), {"delete": "c1", "after": "1m"})
    *_, kept_on, woken = scenes(*first, submit("a1", 4, after="1m"), **of)
    assert (runs(kept_on), kept_on.queued[0].waits) == ({"b1": "flex"}, Waits.PROTECTED)
    assert (woken.what, str(woken.at), runs(woken)) == ("b1 was taken 1h ago", "1:00:00", {"a1": "flex"})
    quota = played(*first, submit("c2", 4, after="1m"), **of)
    assert (runs(quota), taken(quota)) == ({"c2": "quota"}, ["b1"])


def test_hardware_that_fails_takes_flex_first_and_only_then_quota() -> None:
    story = (submit("a1", 4), submit("b1", 2), submit("b2", 3), submit("a2", 2))
    some = played(*story, {"capacity_gpus": 9}, capacity=11, min_run="1h")
    assert {t.team: t.share_gpus for t in some.teams} == {"a": 6, "b": 3}
    assert (sorted(runs(some)), taken(some)) == (["a1", "a2", "b2"], ["b1"]), "two are gone: b is two above its share"
    more = played(*story, {"capacity_gpus": 4}, capacity=11)
    assert runs(more) == {"a1": "quota"}


def test_the_youngest_gives_back_first_and_no_more_than_it_must() -> None:
    story = [submit(f"b{n}", 2, after="1m") for n in range(4)]
    last = played(*story, submit("a1", 2), capacity=8, teams=[{"team": "a", "quota_gpus": 2}, {"team": "b"}])
    assert taken(last) == ["b3"]
    odd = played(submit("b1", 3), submit("b2", 5), submit("a1", 4), capacity=8)
    assert taken(odd) == ["b2"], "five back for four is less than eight"


def test_a_low_priority_gives_back_before_a_high_one() -> None:
    last = played(
        *(submit("b1", 2, priority=1), submit("b2", 2, priority=5), submit("a1", 2)),
        capacity=4,
        teams=[{"team": "a", "quota_gpus": 2}, {"team": "b"}],
    )
    assert taken(last) == ["b1"]


# --- who gives back, against all that could ------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    need=st.integers(1, 40),
    above=st.lists(st.integers(-5, 20), min_size=3, max_size=3),
)
def test_whole_jobs_give_back_with_the_least_overshoot_there_is(sizes: list[int], need: int, above: list[int]) -> None:
    jobs = [Running(f"j{n}", "xyz"[n % 3], size, n) for n, size in enumerate(sizes)]
    found = choose_yielding(jobs, need, dict(zip("xyz", above, strict=True)))
    sums = [sum(j.size for j in c) for k in range(len(jobs) + 1) for c in combinations(jobs, k)]
    enough = [s for s in sums if s >= need]
    assert len(set(found)) == len(found)
    assert sum(j.size for j in found) == min(enough, default=0)


def test_what_a_quota_must_keep_is_picked_by_nobody() -> None:
    """5 of 11 are to go, at most 4 of them such as count in quota: j4 and j2 would be 5 that do."""
    sizes = {"j0": (2, False), "j2": (1, True), "j3": (4, False), "j4": (4, True)}
    jobs = [Running(name, "a", g, n, counts_in_quota=quota) for n, (name, (g, quota)) in enumerate(sizes.items())]
    found = choose_yielding(jobs, 5, {"a": 5}, {"a": Beyond(quota=4, all=5)})
    assert sorted(j.job for j in found) == ["j2", "j3"]


def test_of_equal_overshoot_who_is_furthest_above_its_share_gives_back() -> None:
    jobs = [Running("x1", "x", 4, 0), Running("y1", "y", 4, 1)]
    assert [j.job for j in choose_yielding(jobs, 3, {"x": 9, "y": 2})] == ["x1"]
    assert [j.job for j in choose_yielding(jobs, 3, {"x": 1, "y": 2})] == ["y1"]


# --- the command ----------------------------------------------------------------------------------------------


def test_the_command_tells_the_story_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flex", "simulate", str(STORY), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, makers()["flex-scenes"]())
    assert len(found["steps"]) == 8
    assert [(t["team"], t["allocated_gpus"], t["queued_jobs"]) for t in found["steps"][-1]["teams"]] == [
        ("a", 8, 0),
        ("b", 4, 1),
        ("c", 4, 1),
        ("d", 0, 0),
    ]
    assert [p["job"] for p in found["steps"][-1]["preempted"]] == ["c3", "b3"]
    jsonschema.validate(yaml.safe_load(STORY.read_text()), makers()["flex-story"]())
    assert run(["flex", "simulate", str(STORY)]) == 0
    shown = capsys.readouterr().out
    assert "   8  a submits a2: a2 runs; c3 of c gives 2 back (a is below its share, and c was above its own)" in shown
    assert "b3              b        2  it needs 2 GPUs, none is free, and b has 4, with a share of 4" in shown
    assert "0 of 16 GPUs are free." in shown


def test_what_comes_between_two_steps_is_shown_with_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [submit("b1", 4), submit("a1", 4, after="5m"), {"delete": "a1", "after": "1h"}]
    teams = quotas(a=4, b=0)
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"capacity_gpus": 4, "min_run": "10m", "teams": teams, "steps": steps}))
    assert run(["flex", "simulate", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "   2  a submits a1: nothing else\n      at 10m  b1 has run for 10m: a1 runs; b1 of b gives 4 back" in shown
    assert run(["flex", "simulate", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, makers()["flex-scenes"]())
    assert [(s["step"], s["woken"], s["at"]) for s in found["steps"]][1:] == [
        (1, False, "5m"),
        (1, True, "10m"),
        (2, False, "65m"),
    ]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (
            [{"submit": {"job": "z", "team": "z", "gpus": 1}}],
            "steps[0].submit.team is 'z', which is not among the file's teams",
        ),
        ([submit("a1", 0)], "steps[0].submit.gpus must be above 0, not 0"),
        (
            [submit("a1", 1.5)],
            "must be whole GPUs or a part of one, not 1.5: only a job of one GPU or less may take a part",
        ),
        ([submit("a1", 0.0001)], "must be a number of GPUs with at most three decimals, not 0.0001"),
        ([submit("a1", 1), submit("a1", 1)], "steps[1].submit.job 'a1' exists already: use another name"),
        ([{"delete": "a9"}], "steps[0].delete is 'a9', and no such job exists at that step"),
        ([{"delete": "a9", "capacity_gpus": 3}], "must have exactly one of submit, delete and capacity_gpus"),
        ([{}], "must have exactly one of submit, delete and capacity_gpus"),
        (
            [submit("a1", 1, target="flex", preemptible=False)],
            "steps[0].submit.preemptible must be true for a flex job",
        ),
        ([submit("a1", 1, target="spot")], "steps[0].submit.target must be"),
    ],
)
def test_a_bad_story_is_one_sentence(
    steps: list[dict[str, Any]], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"capacity_gpus": 4, "teams": [{"team": "a"}], "steps": steps}))
    assert run(["flex", "simulate", str(path), "--json"]) == 2
    caught = capsys.readouterr()
    assert (said in caught.err, caught.err.count("\n"), caught.out) == (True, 1, ""), caught.err
