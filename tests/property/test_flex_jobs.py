"""Properties after every step of every story of jobs on flex, by docs/design.md alone ("Jobs and flex")."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from models.flex.division import FlexMode, FlexTeam
from models.flex.scene import On, Scene, Waits
from models.flex.simulation import tell_story
from models.flex.story import FlexJob, FlexStep, FlexStory, JobTarget
from models.flex.yielding import Beyond, Running, choose_yielding, most_kept
from tests.tried import examples

pytestmark = pytest.mark.fuzzed
TEAMS = ("a", "b", "c")
PARTS = (Fraction(1, 2), Fraction(3, 5), Fraction(3, 10))


@st.composite
def stories(draw: st.DrawFn, *, flat: bool = False, whole: bool = False, unprotected: bool = False) -> FlexStory:
    limits = st.none() if flat else st.one_of(st.none(), st.integers(0, 15))
    teams = tuple(
        FlexTeam(
            team=name,
            parent=None if flat else draw(st.sampled_from([None, "n"])),
            quota_gpus=draw(st.integers(0, 8)),
            limit_gpus=draw(limits),
            priority=draw(st.integers(0, 1)),
        )
        for name in TEAMS
    )
    if any(t.parent for t in teams):
        teams = (FlexTeam(team="n", limit_gpus=draw(limits)), *teams)
    sizes = [*map(Fraction, range(1, 7)), *(() if whole else PARTS)]
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
                gpus=draw(st.sampled_from(sizes)),
                target=target,
                preemptible=target is JobTarget.FLEX or draw(st.booleans()),
                priority=draw(st.integers(0, 1)),
            )
            there.append(job.job)
            steps.append(FlexStep(submit=job, after=after))
    minutes = st.just(timedelta(0)) if unprotected else st.integers(0, 30).map(lambda m: timedelta(minutes=m))
    return FlexStory(
        capacity_gpus=draw(st.integers(0, 20)),
        mode=draw(st.sampled_from(FlexMode)),
        teams=teams,
        steps=tuple(steps),
        min_run=draw(minutes),
        window=draw(minutes),
    )


def has(scene: Scene, team: str, *on: On) -> Fraction:
    return sum((j.gpus for j in scene.running if j.team == team and (not on or j.on in on)), Fraction(0))


def fit(sizes: Sequence[Fraction], gpus: int) -> bool:
    """Return whether the jobs fit on so many GPUs, each on one or on whole ones: all ways are tried."""
    left = gpus - sum(int(s) for s in sizes if s >= 1)
    parts = sorted((s for s in sizes if s < 1), reverse=True)

    def place(n: int, rooms: tuple[Fraction, ...], unused: int) -> bool:
        if n == len(parts):
            return True
        tries = [(*rooms[:k], room - parts[n], *rooms[k + 1 :]) for k, room in enumerate(rooms) if room >= parts[n]]
        if any(place(n + 1, tuple(sorted(t)), unused) for t in set(tries)):
            return True
        return unused > 0 and place(n + 1, (*rooms, 1 - parts[n]), unused - 1)

    return left >= 0 and place(0, (), left)


def spec_of(story: FlexStory) -> dict[str, FlexJob]:
    return {s.submit.job: s.submit for s in story.steps if s.submit is not None}


@settings(max_examples=examples(400), deadline=None)
@given(story=stories())
def test_no_gpu_is_given_twice_and_no_quota_or_limit_is_passed(story: FlexStory) -> None:
    teams, specs = {t.team: t for t in story.teams}, spec_of(story)
    for scene in tell_story(story):
        assert sum((j.gpus for j in scene.running), Fraction(0)) + scene.unused_gpus == scene.capacity_gpus
        assert fit([j.gpus for j in scene.running], scene.capacity_gpus)
        for name, team in teams.items():
            assert has(scene, name, On.QUOTA) <= (team.quota_gpus or 0)
            inside = has(scene, name) + sum(has(scene, t.team) for t in story.teams if t.parent == name)
            assert team.limit_gpus is None or inside <= team.limit_gpus
        shared = [t for t in story.teams if t.parent is not None]
        in_namespace = sum(has(scene, t.team, On.QUOTA, On.SIBLINGS) for t in shared)
        assert in_namespace <= sum(t.quota_gpus or 0 for t in shared), "never beyond the tree"
        assert all(not has(scene, t.team, On.SIBLINGS) for t in story.teams if t.parent is None)
        for job in scene.running:
            spec = specs[job.job]
            assert job.on is On.FLEX or spec.target is not JobTarget.FLEX
            assert job.on is On.QUOTA or (spec.preemptible and spec.target is not JobTarget.QUOTA)
            assert job.on is not On.SIBLINGS or spec.target is JobTarget.BOTH


@settings(max_examples=examples(400), deadline=None)
@given(story=stories())
def test_nothing_is_free_that_a_waiting_job_could_use_and_each_is_told_why_it_waits(story: FlexStory) -> None:
    teams, specs = {t.team: t for t in story.teams}, spec_of(story)
    for scene in tell_story(story):
        for job in scene.queued:
            team, spec = teams[job.team], specs[job.job]
            limited = team.limit_gpus is not None and has(scene, job.team) + job.gpus > team.limit_gpus
            quota_only = not spec.preemptible or spec.target is JobTarget.QUOTA
            mine = (specs[j.job] for j in scene.running if j.team == job.team)
            bound = sum(s.gpus for s in mine if not s.preemptible or s.target is JobTarget.QUOTA)
            outside = quota_only and bound + job.gpus > (team.quota_gpus or 0)
            over = teams.get(team.parent or "")
            if over is not None and over.limit_gpus is not None:
                inside = sum(has(scene, t.team) for t in story.teams if t.parent == over.team)
                limited = limited or inside + job.gpus > over.limit_gpus
            full = not fit([*(j.gpus for j in scene.running), job.gpus], scene.capacity_gpus)
            assert limited or outside or full
            true_of = {
                Waits.TOO_LARGE: job.gpus > scene.capacity_gpus,
                Waits.LIMIT: limited,
                Waits.NO_QUOTA: outside,
                Waits.SHARE: full or limited,
                Waits.HARDWARE: full or limited,
                Waits.PROTECTED: bool(story.min_run or story.window),
            }
            assert job.waits is not None
            assert true_of[job.waits], (job, scene)
            assert job.why
        assert all(j.waits is None and not j.why for j in scene.running)


@settings(max_examples=examples(400), deadline=None)
@given(story=stories())
def test_nobody_is_taken_and_started_in_one_step_and_the_clocks_hold(story: FlexStory) -> None:
    since: dict[str, timedelta] = {}
    taken_at: dict[str, timedelta] = {}
    before: set[str] = set()
    for scene in tell_story(story):
        taken, now = {t.job for t in scene.preempted}, {j.job for j in scene.running}
        ended = {story.steps[scene.step].delete} if not scene.woken else set()
        assert taken <= before, "who is taken ran"
        assert not taken & set(scene.started)
        assert now == (before - ended - taken) | set(scene.started), "all that changed is told"
        assert not before & set(scene.started)
        for gone in scene.preempted:
            if gone.why != "hardware is gone":
                assert scene.at - since[gone.job] >= story.min_run
                if "share" in gone.why or "siblings" in gone.why:
                    assert gone.job not in taken_at or scene.at - taken_at[gone.job] >= story.window
            taken_at[gone.job] = scene.at
        since |= dict.fromkeys(scene.started, scene.at)
        before = now


@settings(max_examples=examples(400), deadline=None)
@given(story=stories())
def test_once_at_rest_nothing_moves_so_there_is_no_circle(story: FlexStory) -> None:
    scenes = tell_story(story)
    last = scenes[-1]
    nothing = FlexStep(capacity_gpus=last.capacity_gpus)
    after = timedelta(minutes=61)
    idle = (nothing.model_copy(update={"after": after}), nothing, nothing.model_copy(update={"after": after}))
    longer = tell_story(story.model_copy(update={"steps": (*story.steps, *idle)}))
    assert longer[: len(scenes)] == scenes
    assert [s.what for s in longer[len(scenes) :]] == [
        f"{last.capacity_gpus} -> {last.capacity_gpus} GPU{'s' * (last.capacity_gpus != 1)}"
    ] * 3
    for scene in longer[len(scenes) :]:
        assert (scene.started, scene.preempted) == ((), ())


@settings(max_examples=examples(400), deadline=None)
@given(story=stories(flat=True, whole=True, unprotected=True))
def test_no_team_waits_for_its_quota_while_others_have_what_is_junior_to_it(story: FlexStory) -> None:
    quotas, specs = {t.team: t.quota_gpus or 0 for t in story.teams}, spec_of(story)
    for scene in tell_story(story):
        for job in scene.queued:
            if specs[job.job].target is JobTarget.FLEX:
                continue
            counts = sum(
                j.gpus for j in scene.running if j.team == job.team and specs[j.job].target is not JobTarget.FLEX
            )
            if counts + job.gpus > quotas[job.team]:
                continue
            junior = sum(j.gpus for j in scene.running if j.team != job.team and j.on is On.FLEX)
            assert scene.unused_gpus + junior < job.gpus, (scene, job)


@settings(max_examples=examples(400), deadline=None)
@given(story=stories(flat=True, whole=True, unprotected=True))
def test_no_team_waits_for_its_share_while_others_are_above_theirs_on_flex(story: FlexStory) -> None:
    """The GPUs of others above share and beyond quota always cover a claim: shares add up to what there is."""
    specs = spec_of(story)
    for scene in tell_story(story):
        shares = {t.team: t.share_gpus for t in scene.teams}
        assert sum(shares.values()) <= scene.capacity_gpus
        for job in scene.queued:
            spec = specs[job.job]
            bound = spec.target is JobTarget.QUOTA or not spec.preemptible
            if bound or has(scene, job.team) + job.gpus > shares[job.team]:
                continue
            others = [t for t in TEAMS if t != job.team]
            above = sum(min(max(Fraction(0), has(scene, t) - shares[t]), has(scene, t, On.FLEX)) for t in others)
            assert scene.unused_gpus + above < job.gpus, (scene, job)


@settings(max_examples=examples(300), deadline=None)
@given(story=stories(), dice=st.integers(0, 10**6))
def test_the_order_of_the_teams_does_not_matter(story: FlexStory, dice: int) -> None:
    shuffled = list(story.teams)
    Random(dice).shuffle(shuffled)
    again = tell_story(story.model_copy(update={"teams": tuple(shuffled)}))
    for one, other in zip(tell_story(story), again, strict=True):
        assert {t.team: t for t in one.teams} == {t.team: t for t in other.teams}
        assert one.model_copy(update={"teams": ()}) == other.model_copy(update={"teams": ()})


@settings(max_examples=examples(300), deadline=None)
@given(
    comes=st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=25),
    capacity=st.integers(1, 9),
    dice=st.integers(0, 10**6),
)
def test_a_tie_is_never_a_claim_and_a_name_evicts_nobody(
    comes: list[tuple[str, bool]], capacity: int, dice: int
) -> None:
    """Jobs of one GPU, no quotas, equal shares: one yields to another only where its team has two more."""
    names = list("abcde")
    Random(dice).shuffle(names)
    as_ = dict(zip("abcde", names, strict=True))
    steps: list[FlexStep] = []
    there: list[str] = []
    for n, (team, leaves) in enumerate(comes):
        if leaves and there:
            steps.append(FlexStep(delete=there.pop(0)))
        there.append(f"j{n}")
        steps.append(FlexStep(submit=FlexJob(job=f"j{n}", team=as_[team], gpus=Fraction(1))))
    assume(steps)
    story = FlexStory(capacity_gpus=capacity, teams=tuple(FlexTeam(team=t) for t in names), steps=tuple(steps))
    before = dict.fromkeys(names, Fraction(0))
    for scene in tell_story(story):
        team_of = {j.job: j.team for j in (*scene.running, *scene.queued)}
        if scene.preempted:
            (gone,), (came,) = scene.preempted, scene.started
            assert before[gone.team] >= before[team_of[came]] + 2
        before = {t: has(scene, t) for t in names}


def with_rests(story: FlexStory) -> FlexStory:
    """The same story, with a step that changes nothing after each."""
    steps, capacity = [], story.capacity_gpus
    for step in story.steps:
        capacity = capacity if step.capacity_gpus is None else step.capacity_gpus
        steps += [step, FlexStep(capacity_gpus=capacity)]
    return story.model_copy(update={"steps": tuple(steps)})


def assert_rests(story: FlexStory) -> None:
    """A step that changes nothing changes nothing, wherever it comes."""
    scenes = tell_story(with_rests(story))
    for scene in scenes:
        if scene.step % 2 and not scene.woken:
            assert (scene.started, scene.preempted) == ((), ()), scene
    plain = [s for s in scenes if s.woken or not s.step % 2]
    assert [(s.what, s.running, s.queued) for s in plain] == [(s.what, s.running, s.queued) for s in tell_story(story)]


@settings(max_examples=examples(400), deadline=None)
@given(story=stories())
def test_a_step_that_changes_nothing_changes_nothing(story: FlexStory) -> None:
    assert_rests(story)


@settings(max_examples=examples(400), deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.sampled_from(TEAMS), st.integers(1, 4), st.sampled_from(JobTarget), st.booleans()),
        min_size=1,
        max_size=7,
    ),
    quotas=st.lists(st.integers(0, 8), min_size=3, max_size=3),
    nested=st.booleans(),
    dice=st.integers(0, 10**6),
)
def test_where_all_fit_all_run_in_whatever_order_they_come(
    jobs: list[tuple[str, int, JobTarget, bool]], quotas: list[int], nested: bool, dice: int
) -> None:
    """All fit: the hardware holds them, and each quota those that may run nowhere else."""
    specs = [
        FlexJob(job=f"j{n}", team=team, gpus=Fraction(size), target=target, preemptible=target is JobTarget.FLEX or p)
        for n, (team, size, target, p) in enumerate(jobs)
    ]
    bound = dict.fromkeys(TEAMS, 0)
    for spec in specs:
        bound[spec.team] += int(spec.gpus) * (spec.target is JobTarget.QUOTA or not spec.preemptible)
    held = dict(zip(TEAMS, quotas, strict=True))
    assume(all(bound[team] <= held[team] for team in TEAMS))
    Random(dice).shuffle(specs)
    parent = [FlexTeam(team="n")] if nested else []
    story = FlexStory(
        capacity_gpus=sum(int(spec.gpus) for spec in specs),
        teams=(*parent, *(FlexTeam(team=t, quota_gpus=held[t], parent="n" if nested else None) for t in TEAMS)),
        steps=tuple(FlexStep(submit=spec) for spec in specs),
    )
    last = tell_story(story)[-1]
    assert [(j.job, j.why) for j in last.queued] == []
    assert {j.job for j in last.running} == {spec.job for spec in specs}


# --- who yields, against all that could --------------------------------------------------------------------


@settings(max_examples=examples(600), deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.integers(0, 2)), min_size=1, max_size=7),
    need=st.integers(1, 14),
    above=st.lists(st.integers(-3, 9), min_size=2, max_size=2),
    caps=st.lists(st.tuples(st.none() | st.integers(0, 12), st.none() | st.integers(0, 15)), min_size=2, max_size=2),
)
def test_the_least_overshoot_then_the_fewest_jobs_then_who_is_furthest_above_after_each(
    jobs: list[tuple[int, bool, int]],
    need: int,
    above: list[int],
    caps: list[tuple[int | None, int | None]],
) -> None:
    running = [
        Running(f"j{n}", "xy"[n % 2], size, age, counts_in_quota=counts) for n, (size, counts, age) in enumerate(jobs)
    ]
    beyond = {team: Beyond(*cap) for team, cap in zip("xy", caps, strict=True)}
    found = choose_yielding(running, need, dict(zip("xy", above, strict=True)), beyond)

    def legal(some: Sequence[Running]) -> bool:
        for team, (quota, all_) in zip("xy", caps, strict=True):
            mine = [j for j in some if j.team == team]
            if quota is not None and sum(j.size for j in mine if j.counts_in_quota) > quota:
                return False
            if all_ is not None and sum(j.size for j in mine) > all_:
                return False
        return sum(j.size for j in some) >= need

    sets = [c for many in range(1, len(running) + 1) for c in combinations(running, many) if legal(c)]
    if not sets:
        assert found == []
        return
    best = min((sum(j.size for j in c), len(c)) for c in sets)
    sets = [c for c in sets if (sum(j.size for j in c), len(c)) == best]
    expected: list[Running] = []
    standing = dict(zip("xy", above, strict=True))
    while len(expected) < best[1]:
        could = {j for c in sets for j in c if j not in expected}
        first = min(could, key=lambda j: (-standing[j.team], -j.had_since, j.team, j.job))
        expected.append(first)
        standing[first.team] -= first.size
        sets = [c for c in sets if first in c]
    assert found == expected


@given(
    sizes=st.lists(st.integers(1, 9), max_size=6),
    more=st.lists(st.integers(1, 9), max_size=5),
    room=st.integers(-3, 40),
    quota=st.integers(0, 30),
)
def test_what_is_kept_is_the_most_that_whole_jobs_fill(
    sizes: list[int], more: list[int], room: int, quota: int
) -> None:
    def sums(of: list[int]) -> set[int]:
        return {sum(c) for many in range(len(of) + 1) for c in combinations(of, many)}

    least = max(s for s in sums(sizes) if s <= quota)
    assert most_kept(sizes, quota) == least
    both = {s + m for s in sums(sizes) for m in sums(more) if s >= least and s + m <= room}
    assert most_kept(sizes, room, more, least) == max(both, default=least)
