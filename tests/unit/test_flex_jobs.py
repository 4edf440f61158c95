"""Stories of jobs on flex, by hand; and the scenario of over-quota fairness."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli.commands.schemas import makers
from cli.main import run
from models.flex.scenario import FlexStory, Scene
from models.flex.simulation import Running, given_back, told

ROOT = Path(__file__).parents[2]
STORY = ROOT / "examples" / "flex-story.yaml"


def played(*steps: dict[str, Any], capacity: int = 16, teams: list[dict[str, Any]] | None = None, **more: Any) -> Scene:
    """How it ends. Teams a and b with quotas of 4 and 2 unless said otherwise."""
    given_teams = teams or [{"team": "a", "quota_gpus": 4}, {"team": "b", "quota_gpus": 2}]
    document = {"capacity_gpus": capacity, "teams": given_teams, "steps": list(steps), **more}
    return told(FlexStory.model_validate(document))[-1]


def submit(job: str, gpus: float, **more: Any) -> dict[str, Any]:
    """The team is the job's first letter."""
    after = more.pop("after", "0s")
    return {"submit": {"job": job, "team": job[0], "gpus": gpus, **more}, "after": after}


def runs(scene: Scene) -> dict[str, str]:
    """What each job runs on; jobs that wait are left out."""
    return {j.job: j.on.value for j in scene.running if j.on is not None}


def taken(scene: Scene) -> list[str]:
    return [t.job for t in scene.preempted]


def test_over_quota_fairness_comes_out_as_it_must() -> None:
    last = told(FlexStory.model_validate(yaml.safe_load(STORY.read_text())))[-1]
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
        first, _, last = told(FlexStory.model_validate({"capacity_gpus": 4, "teams": teams, "steps": steps}))
        assert first.what == "a submits a1 (refused: other may not target its quota)"
        assert (first.running, first.queued, runs(last)) == ((), (), {"a1": "quota"})


def test_the_order_in_which_they_ask_does_not_matter_in_the_end() -> None:
    document = yaml.safe_load(STORY.read_text())
    document["steps"].reverse()
    last = told(FlexStory.model_validate(document))[-1]
    assert {t.team: (int(t.allocated_gpus), t.queued_jobs) for t in last.teams} == {
        "a": (8, 0),
        "b": (4, 1),
        "c": (4, 1),
        "d": (0, 0),
    }


def test_who_has_quota_gets_it_back_from_flex_at_once() -> None:
    document = yaml.safe_load(STORY.read_text())
    document["steps"].append(submit("d1", 8))
    last = told(FlexStory.model_validate(document))[-1]
    assert {t.team: t.allocated_gpus for t in last.teams} == {"a": 4, "b": 2, "c": 2, "d": 8}
    assert sorted(taken(last)) == ["a2", "b2", "c2"]
    assert all(t.why == "d1 runs in the quota of d" for t in last.preempted)


def test_a_job_for_quota_alone_waits_rather_than_running_on_flex() -> None:
    last = played(submit("a1", 3), submit("a2", 2, target="quota"), submit("a3", 2, preemptible=False))
    assert runs(last) == {"a1": "quota"}
    assert [j.job for j in last.queued] == ["a2", "a3"]
    assert last.unused_gpus == 13


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


def test_nobody_is_taken_before_it_has_run_for_min_run() -> None:
    story = (submit("b1", 8), submit("a1", 4, after="5m"))
    early = played(*story, capacity=8, min_run="10m")
    assert (runs(early), taken(early)) == ({"b1": "flex"}, [])
    late = played(*story[:1], submit("a1", 4, after="10m"), capacity=8, min_run="10m")
    assert (runs(late), taken(late)) == ({"a1": "quota"}, ["b1"])


def test_nobody_is_taken_twice_within_the_window() -> None:
    first = (submit("b1", 8), submit("a1", 4), {"delete": "a1", "after": "1m"})
    again = played(*first, submit("a2", 4, after="1m"), capacity=8, window="1h")
    assert (runs(again), [j.job for j in again.queued]) == ({"b1": "flex"}, ["a2"])
    later = played(*first, submit("a2", 4, after="1h"), capacity=8, window="1h")
    assert (runs(later), taken(later)) == ({"a2": "quota"}, ["b1"])


def test_hardware_that_fails_takes_flex_first_and_only_then_quota() -> None:
    story = (submit("a1", 4), submit("b1", 2), submit("b2", 3), submit("a2", 2))
    some = played(*story, {"capacity_gpus": 9}, capacity=11, min_run="1h")
    assert (sorted(runs(some)), taken(some)) == (["a1", "b1", "b2"], ["a2"]), "two are gone, and a2 has two"
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
    jobs = [Running(f"j{n}", "xyz"[n % 3], size, 0, timedelta(0), n) for n, size in enumerate(sizes)]
    found = given_back(jobs, need, dict(zip("xyz", above, strict=True)))
    sums = [sum(j.size for j in c) for k in range(len(jobs) + 1) for c in combinations(jobs, k)]
    enough = [s for s in sums if s >= need]
    assert len(set(found)) == len(found)
    assert sum(j.size for j in found) == min(enough, default=0)


def test_of_equal_overshoot_who_is_furthest_above_its_share_gives_back() -> None:
    jobs = [Running("x1", "x", 4, 0, timedelta(0), 0), Running("y1", "y", 4, 0, timedelta(0), 1)]
    assert [j.job for j in given_back(jobs, 3, {"x": 9, "y": 2})] == ["x1"]
    assert [j.job for j in given_back(jobs, 3, {"x": 1, "y": 2})] == ["y1"]


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
    assert "   8  a submits a2: a2 runs; c3 of c gives 2 back (a is below its share, and this was above one)" in shown
    assert "0 of 16 GPUs are free." in shown


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([{"submit": {"job": "z", "team": "z", "gpus": 1}}], "steps[0].submit.team is 'z', which is not a team"),
        ([submit("a1", 0)], "steps[0].submit.gpus must be above 0, not 0"),
        ([submit("a1", 0.0001)], "must be GPUs to a thousandth at most, not 0.0001"),
        ([submit("a1", 1), submit("a1", 1)], "steps[1].submit.job 'a1' is there already"),
        ([{"delete": "a9"}], "steps[0].delete is 'a9', and there is no such job then"),
        ([{"delete": "a9", "capacity_gpus": 3}], "must have one of submit, delete and capacity_gpus"),
        ([{}], "must have one of submit, delete and capacity_gpus"),
        ([submit("a1", 1, target="flex", preemptible=False)], "steps[0].submit.preemptible must be true of a job for"),
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
