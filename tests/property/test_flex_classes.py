"""Classes inside a quota order a team's own jobs, and move nothing between teams (docs/design.md, "Jobs and flex")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import combinations
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.flex.division import FlexTeam
from models.flex.scene import JobNow, Scene
from models.flex.simulation import _Play, tell_story
from models.flex.simulation_state import Claim, StoryJob
from models.flex.story import FlexJob, FlexStep, FlexStory, JobTarget
from models.flex.yielding import Running, by_class
from tests.property.test_flex_jobs import TEAMS, assert_rests, fit, has, spec_of, stories
from tests.tried import examples

pytestmark = pytest.mark.fuzzed
CLASSES = ("training", "engines", "dev")


@st.composite
def classed(draw: st.DrawFn, *, whole: bool = False, unprotected: bool = False, size: int = 0) -> FlexStory:
    """A story whose jobs are of classes, but for those of team c. `size`: of all, alike, where not 0."""
    story = draw(stories(whole=whole, unprotected=unprotected))
    teams = tuple(t.model_copy(update={"classes": () if t.team in ("c", "n") else CLASSES}) for t in story.teams)
    steps = []
    for step in story.steps:
        job = step.submit
        if job is not None:
            changes = {} if job.team == "c" else {"job_class": draw(st.sampled_from([None, *CLASSES]))}
            alike = {"gpus": Fraction(size), "target": JobTarget.BOTH, "preemptible": True} if size else {}
            job = job.model_copy(update=changes | alike)
        steps.append(step.model_copy(update={"submit": job}))
    return FlexStory.model_validate(story.model_copy(update={"teams": teams, "steps": tuple(steps)}).model_dump())


@st.composite
def crowded(draw: st.DrawFn) -> FlexStory:
    """Two teams that ask for more than there is, with jobs of all classes; hardware comes and goes."""
    teams = tuple(FlexTeam(team=t, quota_gpus=draw(st.integers(0, 8)), classes=CLASSES) for t in "ab")
    steps: list[FlexStep] = []
    for n in range(draw(st.integers(3, 16))):
        if draw(st.integers(0, 4)) == 0:
            steps.append(FlexStep(capacity_gpus=draw(st.integers(2, 14))))
            continue
        job = FlexJob(
            job=f"j{n}",
            team=draw(st.sampled_from("aaab")),
            gpus=Fraction(draw(st.integers(1, 5))),
            target=draw(st.sampled_from([JobTarget.BOTH, JobTarget.BOTH, JobTarget.FLEX])),
            job_class=draw(st.sampled_from(CLASSES)),
        )
        steps.append(FlexStep(submit=job))
    minutes = timedelta(minutes=draw(st.sampled_from([0, 0, 30])))
    return FlexStory(capacity_gpus=draw(st.integers(4, 14)), teams=teams, steps=tuple(steps), min_run=minutes)


def rank(job: FlexJob) -> int:
    return 0 if job.job_class is None else CLASSES.index(job.job_class)


def quota_only(job: FlexJob) -> bool:
    return job.target is JobTarget.QUOTA or not job.preemptible


def stay_and_could_go(story: FlexStory, scene: Scene, team: str, *, for_flex: bool) -> list[FlexJob]:
    """Return the team's jobs that keep running although they could have been preempted."""
    specs = spec_of(story)
    mine = (specs[j.job] for j in scene.running if j.team == team and j.job not in scene.started)
    return [s for s in mine if s.preemptible and (s.target is JobTarget.FLEX) is for_flex]


@settings(max_examples=examples(600), deadline=None)
@given(story=st.one_of(crowded(), classed(whole=True, unprotected=True)))
def test_no_stronger_job_is_taken_where_weaker_ones_of_its_quota_would_have_done(story: FlexStory) -> None:
    specs = spec_of(story)
    for scene in tell_story(story):
        for gone in scene.preempted:
            spec = specs[gone.job]
            if story.min_run and gone.why != "hardware is gone":
                continue  # what has not run for long enough was none that could be taken
            left = stay_and_could_go(story, scene, gone.team, for_flex=spec.target is JobTarget.FLEX)
            weaker = sum((s.gpus for s in left if rank(s) > rank(spec)), Fraction(0))
            assert weaker < spec.gpus, (scene, gone)


@settings(max_examples=examples(2000), deadline=None)
@given(story=st.one_of(crowded(), classed(whole=True, unprotected=True)))
def test_no_stronger_job_waits_where_weaker_ones_of_its_team_would_make_room(story: FlexStory) -> None:
    """This holds whether the weaker jobs have run for long or have just started."""
    specs, teams = spec_of(story), {t.team: t for t in story.teams}
    for scene in tell_story(story.model_copy(update={"min_run": timedelta(0)})):
        for job in scene.queued:
            spec, team = specs[job.job], teams[job.team]
            limits = (t.limit_gpus for t in (team, teams.get(team.parent or "")) if t is not None)
            mine = [specs[j.job] for j in scene.running if j.team == job.team]
            # A job for flex takes none that counts in quota.
            weaker = [
                s
                for s in mine
                if s.preemptible
                and rank(s) > rank(spec)
                and (s.target is JobTarget.FLEX or spec.target is not JobTarget.FLEX)
            ]
            could = job.gpus <= min([scene.capacity_gpus, *(limit for limit in limits if limit is not None)])
            if quota_only(spec):
                stay = sum((s.gpus for s in mine if s not in weaker and quota_only(s)), Fraction(0))
                could = could and team.parent is None and stay + job.gpus <= (team.quota_gpus or 0)
            assert not could or sum((s.gpus for s in weaker), Fraction(0)) < job.gpus, (scene, job)


@settings(max_examples=examples(2000), deadline=None)
@given(story=crowded())
def test_a_claim_by_class_takes_its_own_team_s_alone_and_lets_no_team_grow_beyond_its_share(story: FlexStory) -> None:
    """Each claim is judged by itself, with jobs of all sizes: other claims of the step may take more."""
    claim = _Play._claim

    def watched(play: _Play, before: Mapping[str, StoryJob], gone: dict[str, tuple[str, Claim] | None]) -> bool:
        ran = {name: job.spec.team for name, job in play.at_work().items()}
        had = {team: (play.has(team), play.share(team)) for team in set(ran.values())}
        met = claim(play, before, gone)
        runs = play.at_work()
        taken = [(name, gone[name]) for name in ran.keys() - runs.keys()]
        by_class = [(name, by[0]) for name, by in taken if by is not None and by[1] is Claim.CLASS]
        for name, claimant in by_class:
            team = runs[claimant].spec.team
            assert ran[name] == team
            assert play.has(team) <= max(had[team])
        assert len(by_class) in (0, len(taken))
        return met

    with patch.object(_Play, "_claim", watched):
        tell_story(story)


WEAK_WITHIN_THE_QUOTA = FlexStory(
    capacity_gpus=5,
    teams=(FlexTeam(team="a", quota_gpus=3, classes=("s", "m")),),
    steps=(
        FlexStep(submit=FlexJob(job="first", team="a", gpus=Fraction(5))),
        FlexStep(submit=FlexJob(job="strong", team="a", gpus=Fraction(5))),
        FlexStep(submit=FlexJob(job="weak", team="a", gpus=Fraction(3), job_class="m")),
        FlexStep(delete="first"),
    ),
)


def in_turn(a: int, b: int, capacity: int, *steps: FlexStep) -> FlexStory:
    teams = (FlexTeam(team="a", quota_gpus=a, classes=CLASSES), FlexTeam(team="b", quota_gpus=b, classes=CLASSES))
    return FlexStory(capacity_gpus=capacity, teams=teams, steps=steps)


def comes(
    job: str, gpus: int, job_class: str, target: JobTarget = JobTarget.BOTH, team: str = "a", priority: int = 0
) -> FlexStep:
    job_ = FlexJob(job=job, team=team, gpus=Fraction(gpus), target=target, job_class=job_class, priority=priority)
    return FlexStep(submit=job_)


def capacity(gpus: int) -> FlexStep:
    return FlexStep(capacity_gpus=gpus)


# Found by random search: what a weak job had taken in a step was taken from it in the next one, which changed nothing.
WEAK_ON_WHAT_IS_FREE = in_turn(
    *(2, 2, 6),
    comes("j0", 3, "engines", JobTarget.FLEX, "b"),
    comes("j1", 2, "engines"),
    comes("j2", 2, "training"),
    comes("j3", 3, "training", JobTarget.FLEX),
    comes("j4", 3, "training"),
    comes("j5", 2, "engines"),
)
WEAK_ON_A_SHARE = in_turn(
    *(1, 5, 3),
    comes("j1", 3, "engines", JobTarget.FLEX, "b"),
    FlexStep(capacity_gpus=4),
    comes("j4", 3, "training"),
    comes("j5", 2, "engines", JobTarget.FLEX),
    comes("j6", 3, "engines"),
)
# Or what a claim on a share had started was above it once its team had claimed its quota.
STRONG_ABOVE_ITS_SHARE = in_turn(
    *(5, 1, 10),
    comes("j2", 5, "training", team="b"),
    comes("j3", 2, "training"),
    comes("j4", 4, "training", JobTarget.FLEX),
    comes("j6", 2, "training", team="b"),
    comes("j7", 3, "engines"),
)
ABOVE_ITS_SHARE_AS_HARDWARE_COMES = in_turn(
    *(6, 0, 8),
    comes("j3", 4, "training", JobTarget.FLEX),
    comes("j5", 3, "training"),
    comes("j6", 2, "engines"),
    comes("j9", 2, "training", team="b"),
    comes("j11", 1, "training"),
    FlexStep(capacity_gpus=2),
    FlexStep(capacity_gpus=11),
)
# Or each such step moved something: j8 took from j6, j2 took j10, j6 took j2 by class; then j8 and j10 the other way.
ROUND_AND_ROUND = in_turn(
    *(3, 2, 8),
    comes("j0", 1, "training"),
    comes("j6", 6, "training", team="b"),
    comes("j2", 2, "dev", team="b"),
    comes("j4", 4, "engines", JobTarget.FLEX, "b"),
    comes("j5", 3, "training"),
    comes("j8", 1, "training", JobTarget.FLEX),
    comes("j10", 1, "training"),
    FlexStep(capacity_gpus=2),
    FlexStep(capacity_gpus=11),
)


@pytest.mark.parametrize(
    ("story", "runs"),
    [
        pytest.param(WEAK_WITHIN_THE_QUOTA, {"strong"}, id="within-the-quota"),
        pytest.param(WEAK_ON_WHAT_IS_FREE, {"j2", "j4"}, id="on-what-is-free"),
        pytest.param(WEAK_ON_A_SHARE, {"j4"}, id="on-a-share"),
        pytest.param(STRONG_ABOVE_ITS_SHARE, {"j3", "j6", "j7"}, id="above-its-share"),
        pytest.param(ABOVE_ITS_SHARE_AS_HARDWARE_COMES, {"j5", "j6", "j9", "j11"}, id="as-hardware-comes"),
        pytest.param(ROUND_AND_ROUND, {"j0", "j5", "j6", "j10"}, id="round-and-round"),
    ],
)
def test_the_weaker_class_waits_and_things_come_to_rest(story: FlexStory, runs: set[str]) -> None:
    assert {j.job for j in tell_story(story)[-1].running} == runs
    assert_rests(story)


@settings(max_examples=examples(2000), deadline=None)
@given(story=st.one_of(crowded(), classed()))
def test_with_classes_a_step_that_changes_nothing_changes_nothing(story: FlexStory) -> None:
    assert_rests(story)


def before(scenes: Sequence[Scene], step: int) -> Sequence[JobNow]:
    """Return the running jobs as a step begins."""
    return next((s.running for s in reversed(scenes) if s.step < step), ())


@settings(max_examples=examples(600), deadline=None)
@given(data=st.data(), size=st.integers(1, 3))
def test_classes_change_nothing_of_what_teams_have(data: st.DataObject, size: int) -> None:
    """Jobs that are alike but for their classes and priorities: what a team gives back any of them can give back.

    Two things are a job's own, and which job of a team it is classes say: `min_run` and `window` protect it, and its
    end ends its age. So these stories protect nothing, and are compared until a job ends that runs in either.
    """
    story = data.draw(classed(whole=True, unprotected=True, size=size))
    plain = tuple(t.model_copy(update={"classes": ()}) for t in story.teams)
    steps = tuple(
        s if s.submit is None else s.model_copy(update={"submit": s.submit.model_copy(update={"job_class": None})})
        for s in story.steps
    )
    with_, without = tell_story(story), tell_story(story.model_copy(update={"teams": plain, "steps": steps}))
    for n, step in enumerate(story.steps):
        ran = {j.job for scenes in (with_, without) for j in before(scenes, n) if j.team != "c"}
        if step.delete in ran:
            break
        scene, other = (next(s for s in scenes if s.step == n and not s.woken) for scenes in (with_, without))
        assert {t: has(scene, t) for t in TEAMS} == {t: has(other, t) for t in TEAMS}


# Teams equally far above their shares: the youngest goes, and j6 runs where its team has run since before j3.
SAME_DISTANCE = in_turn(
    *(5, 4, 5), comes("j2", 2, "dev"), comes("j3", 2, "dev", team="b"), comes("j6", 2, "training"), capacity(2)
)
# Equally far below: after j10 it is b's turn, whose j6 came before a's second job.
SAME_TURN = in_turn(
    *(3, 1, 0), comes("j1", 2, "dev"), comes("j6", 2, "dev", team="b"), comes("j10", 2, "training"), capacity(4)
)
# What a team says of its own job is no claim against another team.
OWN_PRIORITY = in_turn(0, 0, 4, comes("j1", 2, "dev", team="b"), comes("j2", 2, "dev", priority=9), capacity(2))


@pytest.mark.parametrize(
    ("story", "runs"),
    [
        pytest.param(SAME_DISTANCE, {"j6"}, id="equally-above"),
        pytest.param(SAME_TURN, {"j6", "j10"}, id="equally-below"),
        pytest.param(OWN_PRIORITY, {"j1"}, id="priority"),
    ],
)
def test_between_teams_equally_far_from_their_shares_neither_class_nor_priority_decides(
    story: FlexStory, runs: set[str]
) -> None:
    assert {j.job for j in tell_story(story)[-1].running} == runs


@settings(max_examples=examples(400), deadline=None)
@given(story=classed())
def test_what_is_always_so_is_so_with_classes(story: FlexStory) -> None:
    """No GPU twice, who is taken ran and does not start in the same step, and nothing moves once at rest."""
    before: set[str] = set()
    specs, scenes = spec_of(story), tell_story(story)
    for scene in scenes:
        assert sum((j.gpus for j in scene.running), Fraction(0)) + scene.unused_gpus == scene.capacity_gpus
        assert fit([j.gpus for j in scene.running], scene.capacity_gpus)
        taken = {t.job for t in scene.preempted}
        assert taken <= before
        assert not taken & set(scene.started)
        for gone in scene.preempted:
            if "class" in gone.why:
                assert specs[gone.why.split()[0]].team == gone.team
        before = {j.job for j in scene.running}
    nothing = FlexStep(capacity_gpus=scenes[-1].capacity_gpus)
    idle = (nothing.model_copy(update={"after": timedelta(minutes=61)}), nothing)
    for scene in tell_story(story.model_copy(update={"steps": (*story.steps, *idle)}))[len(scenes) :]:
        assert (scene.started, scene.preempted) == ((), ())


@settings(max_examples=examples(600), deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.booleans()), min_size=1, max_size=8),
    chosen=st.sets(st.integers(0, 7)),
)
def test_in_place_of_those_chosen_the_weakest_that_cover_as_much(
    jobs: list[tuple[int, int, bool]], chosen: set[int]
) -> None:
    """Against all sets there are: the least of the strongest class, then of the next, then the overshoot."""
    pool = [
        Running(f"j{n}", "x", size, n, counts_in_quota=counts, rank=rank) for n, (size, rank, counts) in enumerate(jobs)
    ]
    mine = [j for n, j in enumerate(pool) if n in chosen]
    found = by_class(mine, pool)

    def score(some: Sequence[Running]) -> tuple[list[int], int, int]:
        return [sum(j.size for j in some if j.rank == r) for r in range(3)], sum(j.size for j in some), len(some)

    for counts in (True, False):
        own = [j for j in pool if j.counts_in_quota is counts]
        need = sum(j.size for j in mine if j.counts_in_quota is counts)
        sets = [c for many in range(len(own) + 1) for c in combinations(own, many) if sum(j.size for j in c) >= need]
        if need and len({j.rank for j in own}) > 1:
            got = [j for j in found if j.counts_in_quota is counts]
            assert score(got)[:2] == min(score(c) for c in sets)[:2]
