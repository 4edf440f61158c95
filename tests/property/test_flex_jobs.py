"""What must hold after every step of every story of jobs on flex."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from models.flex.division import FlexMode, FlexTeam
from models.flex.scenario import FlexJob, FlexStep, FlexStory, JobTarget, On, Scene
from models.flex.simulation import told

TEAMS = ("a", "b", "c")


@st.composite
def stories(draw: st.DrawFn) -> FlexStory:
    namespace = FlexTeam(team="n", limit_gpus=draw(st.one_of(st.none(), st.integers(0, 15))))
    teams = tuple(
        FlexTeam(
            team=name,
            parent=draw(st.sampled_from([None, "n"])),
            quota_gpus=draw(st.integers(0, 8)),
            limit_gpus=draw(st.one_of(st.none(), st.integers(0, 12))),
        )
        for name in TEAMS
    )
    if any(t.parent for t in teams):
        teams = (namespace, *teams)
    steps: list[FlexStep] = []
    there: list[str] = []
    for n in range(draw(st.integers(1, 14))):
        after = timedelta(minutes=draw(st.integers(0, 20)))
        kind = draw(st.sampled_from(["submit", "submit", "submit", "delete", "capacity"]))
        if kind == "delete" and there:
            steps.append(FlexStep(delete=there.pop(draw(st.integers(0, len(there) - 1))), after=after))
        elif kind == "capacity":
            steps.append(FlexStep(capacity_gpus=draw(st.integers(0, 20)), after=after))
        else:
            target = draw(st.sampled_from(JobTarget))
            job = FlexJob(
                job=f"j{n}",
                team=draw(st.sampled_from(TEAMS)),
                gpus=draw(st.sampled_from([Fraction(1, 2), *map(Fraction, range(1, 7))])),
                target=target,
                preemptible=target is JobTarget.FLEX or draw(st.booleans()),
                priority=draw(st.integers(0, 1)),
            )
            there.append(job.job)
            steps.append(FlexStep(submit=job, after=after))
    minutes = st.integers(0, 30).map(lambda m: timedelta(minutes=m))
    return FlexStory(
        capacity_gpus=draw(st.integers(0, 20)),
        mode=draw(st.sampled_from(FlexMode)),
        teams=teams,
        steps=tuple(steps),
        min_run=draw(minutes),
        window=draw(minutes),
    )


def has(scene: Scene, team: str, on: On | None = None) -> Fraction:
    return sum((j.gpus for j in scene.running if j.team == team and on in (None, j.on)), Fraction(0))


@given(story=stories())
def test_no_gpu_is_given_twice_and_no_quota_or_limit_is_passed(story: FlexStory) -> None:
    teams = {t.team: t for t in story.teams}
    specs = {s.submit.job: s.submit for s in story.steps if s.submit is not None}
    for scene in told(story):
        assert sum((j.gpus for j in scene.running), Fraction(0)) + scene.unused_gpus == scene.capacity_gpus
        assert scene.unused_gpus >= 0
        for name, team in teams.items():
            assert has(scene, name, On.QUOTA) <= (team.quota_gpus or 0)
            inside = has(scene, name) + sum(has(scene, t.team) for t in story.teams if t.parent == name)
            assert team.limit_gpus is None or inside <= team.limit_gpus
        shared = [t for t in story.teams if t.parent is not None]
        in_namespace = sum(has(scene, t.team, On.QUOTA) + has(scene, t.team, On.SIBLINGS) for t in shared)
        assert in_namespace <= sum(t.quota_gpus or 0 for t in shared), "never beyond the tree"
        assert all(not has(scene, t.team, On.SIBLINGS) for t in story.teams if t.parent is None)
        for job in scene.running:
            spec = specs[job.job]
            assert job.on is On.FLEX or spec.target is not JobTarget.FLEX
            assert job.on is On.QUOTA or (spec.preemptible and spec.target is not JobTarget.QUOTA)
            assert job.on is not On.SIBLINGS or spec.target is JobTarget.BOTH


@given(story=stories())
def test_nothing_is_free_that_a_waiting_job_could_use(story: FlexStory) -> None:
    teams = {t.team: t for t in story.teams}
    specs = {s.submit.job: s.submit for s in story.steps if s.submit is not None}
    for scene in told(story):
        for job in scene.queued:
            team, spec = teams[job.team], specs[job.job]
            limited = team.limit_gpus is not None and has(scene, job.team) + job.gpus > team.limit_gpus
            quota_only = not spec.preemptible or spec.target is JobTarget.QUOTA
            outside = quota_only and has(scene, job.team, On.QUOTA) + job.gpus > (team.quota_gpus or 0)
            over = teams.get(team.parent or "")
            if over is not None and over.limit_gpus is not None:
                inside = sum(has(scene, t.team) for t in story.teams if t.parent == over.team)
                limited = limited or inside + job.gpus > over.limit_gpus
            assert limited or outside or job.gpus > scene.unused_gpus


@given(story=stories())
def test_who_runs_in_quota_is_never_taken_for_anothers_sake_and_the_clocks_hold(story: FlexStory) -> None:
    since: dict[str, timedelta] = {}
    taken_at: dict[str, timedelta] = {}
    before: dict[str, On | None] = {}
    for scene in told(story):
        for taken in scene.preempted:
            if taken.why != "hardware is gone":
                assert before.get(taken.job) is not On.QUOTA
                assert scene.at - since[taken.job] >= story.min_run
                assert taken.job not in taken_at or scene.at - taken_at[taken.job] >= story.window
            taken_at[taken.job] = scene.at
        now = {j.job: j.on for j in scene.running}
        for job in now:
            if job not in before or job in scene.started:
                since[job] = scene.at
        before = dict(now)


@given(story=stories())
def test_the_same_story_ends_the_same(story: FlexStory) -> None:
    assert told(story) == told(story)
