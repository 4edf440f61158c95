"""`backstop why`: the reasons in words and numbers, checked by hand; and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cli.main import run
from cli.output import show
from models.buffers.hourly_health import Stretch, stretches
from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn
from models.cluster.latest_readings import Evidence
from models.cluster.policy import Policy, Tier
from models.cluster.quota import Quota
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.cluster.snapshot import Snapshot
from models.cluster.windows import Window, WindowKind
from models.errors import Refusal
from models.flex.flex_now import FlexNow, IslandNow
from models.lifecycle.holds import Hold, HoldKind
from models.planning.plan import make_plan
from models.reports.flex_offers import flex_offers
from models.reports.rollout_summary import RolloutSummary
from models.reports.why import TeamWhy, WhyAnswers, explain_team
from models.rollout.stages import Stage
from models.rollout.status_models import Condition
from tests.tried import examples
from tests.unit.cli_fakes import FakeBackstop, answering, status
from views.why import in_full, summary

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SWITCHES = Window(
    kind=WindowKind.MAINTENANCE,
    starts=NOW - timedelta(hours=1),
    ends=NOW + timedelta(hours=3),
    reason="new switches",
    gpus=20,
)


def history(*healthy: int) -> Stretch:
    """Return a history by the hour, of 361 GPUs; its last hour ended an hour ago."""
    at = np.array([(NOW - timedelta(hours=len(healthy) - n)).timestamp() for n in range(len(healthy))])
    return stretches(at, np.full(len(healthy), 361.0), np.array(healthy, dtype=float))


def asked(gpus: int | None = None, *, block: bool = False, **changes: Any) -> TeamWhy:
    """The worked case: 345 of quota, 319 of 361 healthy, 310 scheduled."""
    usage = changes.pop("usage", {"research": TeamUsage(team="research", scheduled_gpus=310, idle_gpus=12)})
    quotas = changes.pop("quotas", (Present(team="research", gpus=345),))
    islands = changes.pop("islands", (Island(name="main", total_gpus=361, healthy_gpus=319, block_gpus=304),))
    reading = QuotaReading(cluster="h100-worked", generation=1, quotas=quotas)
    sample = HealthSample(cluster="h100-worked", at=NOW, islands=islands)
    past = changes.pop("history", {"main": history(361, 361, 340, 319)})
    seen = Evidence(reading, sample, usage, NOW, windows=changes.pop("windows", ()), jobs=changes.pop("jobs", ()))
    return explain_team(seen, past, "research", gpus, block=block, namespace=changes.pop("namespace", ""))


def reasons(found: TeamWhy) -> list[tuple[str, int]]:
    return [(r.cause.value, r.gpus) for r in found.reasons]


@pytest.mark.parametrize(
    ("gpus", "scheduled", "idle", "by_hand"),
    [(8, 12, 6, (8, 2)), (1, 2, 1, (1, 0)), (8, 8, 3, (8, 3)), (8, 12, 12, (8, 8)), (8, 20, 5, (8, 0))],
)
def test_idle_beyond_the_quota_is_not_idle_in_it(
    gpus: int, scheduled: int, idle: int, by_hand: tuple[int, int]
) -> None:
    """`plan` says the same: what does work fills the quota first."""
    usage = {"research": TeamUsage(team="research", scheduled_gpus=scheduled, idle_gpus=idle)}
    here = (Island(name="main", total_gpus=32, healthy_gpus=32),)
    answer = asked(quotas=(Present(team="research", gpus=gpus),), usage=usage, islands=here, history={})
    assert (answer.used_gpus, answer.idle_gpus) == by_hand
    counted = dict(reasons(answer))
    assert (counted.get("idle", 0), counted.get("used", 0)) == (by_hand[1], by_hand[0] - by_hand[1])
    quota = Quota(team="research", gpus=gpus, scheduled_gpus=scheduled, idle_gpus=idle)
    bare = Policy.model_validate({"buffer": 0, "spare_gpus": 32})
    plan = make_plan(Snapshot(cluster="c", islands=here, quotas=(quota,)), bare)
    assert sum(c.gpus for c in plan.quotas[0].cuts if c.tier is Tier.IDLE) == by_hand[1]


def test_all_of_the_quota_is_what_has_no_hardware_and_what_ones_own_jobs_hold() -> None:
    found = asked()
    assert (found.wanted_gpus, found.startable_gpus, found.gap_gpus) == (345, 9, 336)
    assert reasons(found) == [("unhealthy", 26), ("idle", 12), ("used", 298)]
    assert "main lacks 42, not wholly healthy since 2026-01-31 10:00Z" in found.reasons[0].text


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_reason_speaks_of_one_gpu_as_of_one(gpus: int) -> None:
    """Each cause whose sentence has a pronoun for its GPUs is tried with so many GPUs."""
    research = Present(team="research", gpus=10, parent="lab")
    tree = (research, Present(team="lab", gpus=10 - gpus))
    here = (Island(name="main", total_gpus=10, healthy_gpus=10 - 2 * gpus),)
    window = SWITCHES.model_copy(update={"gpus": gpus})
    idle = {"research": TeamUsage(team="research", scheduled_gpus=gpus, idle_gpus=gpus)}
    whole = (Island(name="main", total_gpus=10, healthy_gpus=10),)
    alone = (research.model_copy(update={"parent": None}),)
    found = [
        *asked(quotas=tree, usage={}, islands=whole).reasons,
        *asked(quotas=alone, usage=idle, islands=here, windows=(window,)).reasons,
    ]
    pronouns = {r.cause.value: sorted({*re.findall(r"\b(it|they|them)\b", r.text)}) for r in found if r.cause != "used"}
    assert {r.gpus for r in found if r.cause != "used"} == {gpus}
    plural = {"declared": ["they"], "unhealthy": ["them", "they"], "idle": ["them"]}
    assert pronouns == ({cause: ["it"] for cause in plural} if gpus == 1 else plural) | {"withheld": []}
    assert next(r.text for r in found if r.cause == "withheld").endswith("this GPU" if gpus == 1 else "these GPUs")


def outside(job: str, gpus: int, island: str | None = "i0", on: RunsOn = RunsOn.QUOTA, team: str = "guests") -> Job:
    return Job(job=job, team=team, gpus=gpus, on=on, island=island, started=NOW)


def test_jobs_outside_any_quota_are_in_the_way_unless_they_are_on_flex() -> None:
    """By hand: of 48 GPUs guests hold 20, and team evals 8 in its quota: 20 of 24 could start."""
    islands = tuple(Island(name=f"i{n}", total_gpus=24, healthy_gpus=24) for n in range(2))
    quotas = (Present(team="research", gpus=24), Present(team="evals", gpus=8))
    usage = {t: TeamUsage(team=t, scheduled_gpus=s) for t, s in (("research", 0), ("evals", 8))}
    jobs = (
        outside("j1", 12),
        outside("j2", 8, "i1"),
        outside("j3", 16, on=RunsOn.FLEX),
        outside("e", 8, "i1", team="evals"),
    )
    world: dict[str, Any] = {"quotas": quotas, "usage": usage, "islands": islands, "history": {}}
    alone = asked(**world, jobs=jobs[3:])
    assert (alone.startable_gpus, alone.reasons) == (24, ())
    found = asked(**world, jobs=jobs)
    assert (found.startable_gpus, found.short_gpus, found.backed_gpus) == (20, 4, 24), "no promise changes"
    assert [(r.cause.value, r.gpus, r.text) for r in found.reasons] == [
        (
            "others",
            4,
            "other teams' jobs run there inside their own quotas: evals 8; jobs outside any quota run there: guests 20",
        )
    ]
    block = asked(16, block=True, **world, jobs=jobs)
    assert (block.startable_gpus, reasons(block)) == (12, [("fragmented", 4)]), "12 are free in i0, and 8 in i1"
    assert block.reasons[0].text == "16 could start, but not as one block: the largest that is free in one island is 12"
    limited = (Present(team="research", gpus=24, islands=("i1",)), quotas[1])
    here = asked(**world | {"quotas": limited}, jobs=jobs)
    assert (here.startable_gpus, here.reasons[0].text.rpartition(": ")[2]) == (16, "guests 8"), "evals fits in i0"


def test_a_job_outside_any_quota_in_several_islands_may_be_anywhere_in_them() -> None:
    islands = tuple(Island(name=f"i{n}", total_gpus=24, healthy_gpus=24) for n in range(2))
    whole = (Present(team="research", gpus=48),)
    usage = {"research": TeamUsage(team="research", scheduled_gpus=0)}
    jobs = (outside("j1", 16, None), outside("j2", 8, "elsewhere"))
    found = asked(quotas=whole, usage=usage, islands=islands, history={}, jobs=jobs)
    assert (found.startable_gpus, reasons(found)) == (24, [("others", 24)])
    assert found.reasons[0].text == "jobs outside any quota run there: guests 24"
    block = asked(20, block=True, quotas=whole, usage=usage, islands=islands, history={}, jobs=jobs)
    assert block.startable_gpus == 20
    quota_of_that_name = (*whole, Present(team="outside i0", gpus=0), Present(team="guests", gpus=0))
    named = asked(
        quotas=quota_of_that_name, usage=usage, islands=islands, history={}, jobs=(outside("j1", 16, team="x"),)
    )
    assert (named.startable_gpus, named.reasons[0].text) == (32, "jobs outside any quota run there: x 16")


def test_what_was_never_seen_whole_is_so_since_then_or_earlier() -> None:
    assert (
        "main lacks 42, not wholly healthy since 2026-01-31 10:00Z or earlier"
        in asked(history={"main": history(340, 319)}).reasons[0].text
    )
    unknown = asked(history={}).reasons[0].text
    assert unknown.endswith(": 319 of 361 are healthy (main lacks 42)")


def test_what_could_start_is_missing_nothing() -> None:
    assert (asked(9).gap_gpus, asked(9).reasons, asked(9).over_gpus) == (0, (), 0)
    assert reasons(asked(20)) == [("unhealthy", 11)]


def test_beyond_the_quota_is_told_apart() -> None:
    found = asked(400)
    assert (found.wanted_gpus, found.over_gpus, found.gap_gpus) == (345, 55, 336)


def test_a_declared_window_takes_its_part_of_what_is_unhealthy() -> None:
    found = asked(windows=(SWITCHES,))
    assert reasons(found) == [("declared", 20), ("unhealthy", 6), ("idle", 12), ("used", 298)]
    assert found.reasons[0].text == "they are declared as absent (maintenance: new switches, until 2026-01-31 15:00Z)"
    assert "(main lacks 22 beside what is declared, not wholly healthy since" in found.reasons[1].text


def test_a_block_is_missing_what_only_fragmentation_takes() -> None:
    islands = (
        Island(name="a", total_gpus=200, healthy_gpus=190, block_gpus=100),
        Island(name="b", total_gpus=161, healthy_gpus=161, block_gpus=152),
    )
    usage = {"research": TeamUsage(team="research", scheduled_gpus=10)}
    found = asked(200, block=True, islands=islands, usage=usage, history={})
    assert (found.startable_gpus, reasons(found)) == (152, [("fragmented", 48)])
    said = "200 could start, but not as one block: the largest that is free in one island is 152 at most"
    assert found.reasons[0].text == f"{said}: Backstop does not know where all jobs run"


def held(**gpus: int) -> dict[str, TeamUsage]:
    return {team: TeamUsage(team=team, scheduled_gpus=scheduled) for team, scheduled in gpus.items()}


def whole(gpus: int, name: str = "main", healthy: int | None = None) -> Island:
    return Island(name=name, total_gpus=gpus, healthy_gpus=gpus if healthy is None else healthy)


def test_what_other_teams_jobs_hold_in_quota_is_not_free() -> None:
    quotas = (Present(team="research", gpus=100), Present(team="b", gpus=100))
    found = asked(quotas=quotas, usage=held(research=0, b=100), islands=(whole(150),))
    assert (found.startable_gpus, reasons(found)) == (50, [("others", 50)])
    assert found.reasons[0].text == "other teams' jobs run there inside their own quotas: b 100"
    found = asked(quotas=quotas, usage=held(research=0, b=180), islands=(whole(150),))
    assert found.startable_gpus == 50, "what b runs beyond its quota yields"


def test_a_sibling_that_holds_what_the_parent_promises_is_in_the_way() -> None:
    quotas = (
        Present(team="org", gpus=100),
        Present(team="research", gpus=100, parent="org"),
        Present(team="sibling", gpus=100, parent="org"),
    )
    found = asked(quotas=quotas, usage=held(research=0, sibling=80), islands=(whole(361),))
    assert (found.startable_gpus, reasons(found)) == (20, [("withheld", 80)])


def running(name: str, team: str, gpus: int, island: str, on: RunsOn = RunsOn.QUOTA) -> Job:
    return Job(job=name, team=team, gpus=gpus, island=island, on=on, started=NOW)


def test_a_block_counts_the_jobs_that_run_in_its_island() -> None:
    quotas = (Present(team="research", gpus=100), Present(team="b", gpus=64))
    jobs = (running("b-1", "b", 32, "x"), running("b-2", "b", 32, "y"), running("guest", "c", 16, "y", RunsOn.FLEX))
    found = asked(
        64, block=True, quotas=quotas, islands=(whole(64, "x"), whole(64, "y")), jobs=jobs, usage=held(research=0, b=64)
    )
    assert (found.startable_gpus, reasons(found)) == (32, [("fragmented", 32)])
    assert found.reasons[0].text == "64 could start, but not as one block: the largest that is free in one island is 32"


def test_only_a_cause_that_binds_is_named() -> None:
    """All of the quota is in use: repairing hardware would start nothing."""
    quotas = (Present(team="research", gpus=100),)
    found = asked(10, quotas=quotas, usage=held(research=100), islands=(whole(200, healthy=100),))
    assert (found.startable_gpus, reasons(found)) == (0, [("used", 10)])


def test_more_quota_than_was_ever_installed_is_said() -> None:
    quotas = (Present(team="research", gpus=100, islands=("x",)),)
    found = asked(quotas=quotas, usage=held(research=0), islands=(whole(64, "x"), whole(64, "y")))
    assert (found.startable_gpus, reasons(found)) == (64, [("absent", 36)])
    assert found.reasons[0].text == "the islands that research may use have 64 GPUs in all"


def test_idle_jobs_and_declared_gpus_are_counted_once() -> None:
    quotas = (Present(team="research", gpus=361),)
    usage = {"research": TeamUsage(team="research", scheduled_gpus=40, idle_gpus=24)}
    jobs = (
        Job(job="sleeper", team="research", gpus=24, idle_gpus=24, started=NOW),
        Job(job="train", team="research", gpus=16, started=NOW),
    )
    found = asked(quotas=quotas, usage=usage, jobs=jobs, windows=(SWITCHES,))
    texts = {r.cause.value: r.text for r in found.reasons}
    assert reasons(found) == [("declared", 20), ("unhealthy", 22), ("idle", 24), ("used", 16)]
    assert "main lacks 22 beside what is declared" in texts["unhealthy"]
    assert texts["used"] == "research's own running jobs work on 16 of its 361: train 16"


def test_what_the_tree_withholds_is_its_own_reason() -> None:
    quotas = (Present(team="org", gpus=100), Present(team="research", gpus=120, parent="org"))
    found = asked(quotas=quotas, usage={"research": TeamUsage(team="research", scheduled_gpus=30)})
    assert reasons(found) == [("withheld", 20), ("used", 30)]
    assert found.backed_gpus == 120, "what the parent withholds lacks no hardware"


def test_unknown_use_counts_as_all_of_the_quota_and_says_so() -> None:
    found = asked(usage={})
    assert (found.startable_gpus, found.use_known) == (0, False)
    assert reasons(found) == [("used", 319), ("unhealthy", 26)]
    assert "Backstop does not know what research's jobs hold" in found.reasons[0].text


def test_a_sum_and_a_stranger_are_refused() -> None:
    with pytest.raises(Refusal, match=r"is the sum of its sub-quotas: name one of those \(x\)"):
        asked(quotas=(Present(team="research", gpus=9), Present(team="x", gpus=9, parent="research")))
    with pytest.raises(Refusal, match="does not exist"):
        asked(quotas=(Present(team="evals", gpus=9),))


GATED = (Present(team="research", gpus=100, namespaces=("evals",)),)


def test_a_barred_caller_can_start_nothing() -> None:
    open_to: dict[str, Any] = {"quotas": GATED, "islands": (whole(150, healthy=90),)}
    assert reasons(asked(**open_to, usage=held(research=60), namespace="evals")) == [("unhealthy", 10), ("used", 60)]
    found = asked(**open_to, usage=held(research=60), namespace="training")
    assert (found.startable_gpus, found.barred, found.namespaces) == (0, "training", ("evals",))
    assert reasons(found) == [("barred", 30), ("unhealthy", 10), ("used", 60)]
    full = asked(**open_to, usage=held(research=100), namespace="training")
    assert (full.barred, sum(gpus for _, gpus in reasons(full))) == ("training", full.gap_gpus)


def flex_of(cluster: str, free: int, *blocks: int | None, model: str | None = "H100") -> FlexNow:
    islands = tuple(
        IslandNow(name=f"i{n}", total_gpus=100, healthy_gpus=100, block_gpus=100, free_block_gpus=block)
        for n, block in enumerate(blocks)
    )
    return FlexNow(
        cluster=cluster, gpu_model=model, at=NOW, health_at=NOW, surplus_gpus=free, healthy_gpus=100, islands=islands
    )


def test_elsewhere_is_of_the_same_model_and_has_room_for_the_block() -> None:
    flexes = [
        flex_of("h100-worked", 9, 9),
        flex_of("a100", 90, 90, model="A100"),
        flex_of("full", 0, 0),
        flex_of("pods", 60, 40, 20),
        flex_of("quiet", 80, None),
        flex_of("unnamed", 50, 50, model=None),
    ]

    def offered(found: TeamWhy) -> list[tuple[str, int, bool]]:
        return [(o.cluster, o.gpus, o.at_most) for o in flex_offers([found], flexes)]

    assert offered(asked(400)) == [("quiet", 80, False), ("pods", 60, False), ("unnamed", 50, False)]
    assert offered(asked(45, block=True)) == [("unnamed", 50, False), ("quiet", 80, True)]
    assert offered(asked(9)) == [], "nothing is lacking"


def sums_in(sentence: str) -> dict[str, int]:
    """The numbers of a sentence as people read it, by what stands behind or before them."""
    patterns = {
        "held": r"its own jobs hold (\d+)|(\d+) (?:is|are) held by its own jobs|(\d+) counts? as used",
        "start": r"(\d+) (?:more )?could start",
        "short": r"(\d+) (?:is|are) short",
    }
    found = {name: re.search(pattern, sentence) for name, pattern in patterns.items()}
    return {name: int(next(g for g in match.groups() if g)) if match else 0 for name, match in found.items()}


@example(quota=3, other=0, total=2, down=1, uses=(2, 0, 0), wanted=2)
@settings(max_examples=examples(100))
@given(
    quota=st.integers(1, 60),
    other=st.integers(0, 60),
    total=st.integers(1, 120),
    down=st.integers(0, 120),
    uses=st.tuples(st.integers(0, 70), st.integers(0, 70), st.integers(0, 10)),
    wanted=st.none() | st.integers(1, 70),
)
def test_what_own_jobs_hold_is_used_and_never_missing(
    quota: int, other: int, total: int, down: int, uses: tuple[int, int, int], wanted: int | None
) -> None:
    """By hand, in a cluster of one island: held + could start + short = wanted, in words as in numbers."""
    mine, theirs, healthy = min(uses[0], quota), min(uses[1], other), max(0, total - down)
    found = asked(
        wanted,
        quotas=(Present(team="research", gpus=quota), Present(team="b", gpus=other)),
        usage={
            "research": TeamUsage(team="research", scheduled_gpus=uses[0], idle_gpus=min(uses)),
            "b": TeamUsage(team="b", scheduled_gpus=uses[1]),
        },
        islands=(whole(total, healthy=healthy),),
        history={},
    )
    free = max(0, min(quota - mine, healthy - mine - theirs))
    want = quota if wanted is None else min(wanted, quota)
    start = min(want, free)
    lacking = max(0, min(want, min(quota, total) - mine)) - start + max(0, want - total)
    short = min(lacking, quota - mine - start)
    assert (found.startable_gpus, found.short_gpus) == (start, short)
    assert found.held_gpus == want - start - short <= mine
    (paragraph, *_) = in_full(WhyAnswers(teams=(found,)), {}, [])
    expected = {"held": want - start - short, "start": start, "short": short}
    assert sums_in(str(paragraph)) == expected
    assert sums_in(str(summary(WhyAnswers(teams=(found,)), [], hint=False)[0])) == expected
    assert "missing" not in str(paragraph)


def test_a_block_is_in_one_cluster_however_many_have_room_for_one() -> None:
    one = asked(block=True)
    told = [str(summary(WhyAnswers(teams=(one,) * n), [], hint=False)[0]) for n in (1, 2)]
    assert "could start now as one block, and" in told[0]
    assert "could start now as one block in each, and" in told[1]


def test_what_is_short_on_a_page_is_short_in_its_reasons() -> None:
    """A fresh reader read `196 of 196 are missing` beside `0 are short`: all of it was in use."""
    quotas = (Present(team="research", gpus=196),)
    used = asked(quotas=quotas, usage=held(research=196), islands=(whole(200),))
    words = [str(getattr(part, "renderable", part)) for part in in_full(WhyAnswers(teams=(used,)), {}, [])]
    assert words[0] == (
        "research in h100-worked has a quota of 196 GPUs: "
        "its own jobs hold 196 of it, 0 more could start now, and 0 are short."
    )
    assert words[1] == "196 are used: research's own running jobs hold 196 of its 196."
    gone = asked(quotas=quotas, usage=held(research=196), islands=(whole(200, healthy=190),))
    words = [str(getattr(part, "renderable", part)) for part in in_full(WhyAnswers(teams=(gone,)), {}, [])]
    assert (gone.held_gpus, gone.short_gpus) == (196, 0), "its jobs still hold what hardware could not start anew"
    assert [text.split(":")[0] for text in words[1:3]] == [
        "190 are used",
        "6 of what its own jobs hold could not start anew",
    ]


def said(found: TeamWhy, *flexes: FlexNow) -> list[str]:
    """The summary's two lines, then the page."""
    answers = WhyAnswers(teams=(found,))
    parts = [*summary(answers, flexes, hint=False), *in_full(answers, {}, flexes)]
    return [str(getattr(part, "renderable", part)) for part in parts]


def test_what_is_none_is_not_counted_and_one_is_one() -> None:
    """Of 20, within what jobs leave free, none is held: 9 start and 11 lack hardware."""
    assert said(asked(20))[2].endswith("Of the 20 GPUs asked about, 9 could start now and 11 are short.")
    assert said(asked(150))[2].endswith(
        "Of the 150 GPUs asked about, 9 could start now, 115 are held by its own jobs and 26 are short."
    )
    assert "1 more is beyond the quota." in said(asked(346))
    assert "1 more is beyond the quota; flex has nothing free there." in said(asked(346), flex_of("h100-worked", 9, 9))
    beside = "55 more are beyond the quota; flex has 31 more free there, until jobs inside a quota need them."
    assert beside in said(asked(400), flex_of("h100-worked", 40, 40))


def test_where_nobody_says_what_jobs_hold_the_reasons_are_parts_of_what_counts_as_used() -> None:
    found = asked(usage={})
    assert (found.held_gpus, found.short_gpus) == (345, 0)
    words = said(found)
    assert "345 count as used (it is unknown what its jobs hold)" in words[0]
    numbers = {text.partition(": ")[0] for text in words if text[:1].isdigit()}
    assert numbers >= {"319 count as used", "26 of what counts as used could not start anew"}


BARRING = (Present(team="research", gpus=345, namespaces=("evals",)),)


def test_who_is_barred_hears_that_first_and_not_of_hardware_that_would_not_help() -> None:
    found = asked(20, quotas=BARRING, namespace="training")
    assert (found.startable_gpus, reasons(found)) == (0, [("barred", 9), ("unhealthy", 11)])
    assert said(found)[1] == "None of it can start: jobs of namespace training may not target this quota."
    mended = asked(20, quotas=BARRING, namespace="training", islands=(whole(361),))
    assert mended.startable_gpus == 0, "all hardware that there is does not help"


def test_an_island_is_not_whole_since_its_first_failure_and_lacks_what_it_lacks_now() -> None:
    """Of 361, 340 were healthy two hours ago, and 319 an hour ago: 42 were not unhealthy since 10:00."""
    past = {"main": history(361, 361, 340, 319)}
    text = asked(history=past).reasons[0].text
    assert text.endswith("319 of 361 are healthy (main lacks 42, not wholly healthy since 2026-01-31 10:00Z)")
    islands = (whole(200, "a", healthy=180), whole(161, "b", healthy=139))
    assert asked(islands=islands, history={}).reasons[0].text.endswith("(a lacks 20 of 200; b lacks 22 of 161)")


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBackstop]:
    monkeypatch.setenv("BACKSTOP_ACTOR", "researcher")
    open_now = RolloutSummary(
        cluster="h100-worked",
        stage="buffered",
        wave="busy",
        owner="tpm",
        unbacked_gpus=0,
        started=NOW,
        closed=None,
        open=True,
    )
    statuses: list[Any] = [status(Stage.BUFFERED)]
    with answering(FakeBackstop(whys=[asked(400)], statuses=statuses, summaries=[open_now])) as door:
        yield door


def test_the_answer_is_in_plain_words_and_adds_up(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", "research", "--gpus", "400", "--all"]) == 0
    shown = capsys.readouterr().out
    assert "a quota of 345 GPUs: its own jobs hold 310 of it, 9 more could start now, and 26 are short." in shown
    numbers = [int(line.split()[0]) for line in shown.splitlines() if line[:1] == " " and line.split()[0].isdigit()]
    assert sum(numbers) == 336
    assert "55 more are beyond the quota" in shown
    assert "is buffered; held: paused, a SEV; it waits for a person: ask its owner, tpm. See `backstop status" in shown
    assert "backstop resume" not in shown, "a researcher is told whom to wait for, not what to type in their place"
    assert fake.asked[0] == ("why", "research", "", 400, False, "")


ONE = (
    "Of 400 GPUs asked for in h100-worked, 9 could start now in research's quota; "
    "310 are held by its own jobs, 26 are short and 55 are beyond the quota."
)
LACKS = (
    "they have no healthy GPU behind them: 319 of 361 are healthy "
    "(main lacks 42, not wholly healthy since 2026-01-31 10:00Z)."
)
MOST = f"{LACKS} Flex has 60 GPUs free in pods."
FULL = "Of 9 GPUs asked for in h100-worked, 9 could start now in research's quota."
BEST = "Of 400 GPUs asked for, at most 319 could start now in quota, in second (research has quota in 2 clusters)."
IDLE = asked(400, usage=held(research=0)).model_copy(update={"cluster": "second"})


@pytest.mark.parametrize(
    ("whys", "gpus", "lines"),
    [
        ([asked(400)], "400", [ONE, f"The main cause, for 26 GPUs: {MOST} 2 more reasons: see --all."]),
        ([asked(9)], "9", [FULL, "Nothing keeps jobs from starting."]),
        (
            [asked(400), IDLE],
            "400",
            [BEST, f"The main cause, for 26 GPUs in h100-worked: {MOST} 3 more reasons: see --all."],
        ),
    ],
    ids=["one cluster", "nothing missing", "two clusters"],
)
def test_two_lines_have_the_answer(
    fake: FakeBackstop, whys: list[Any], gpus: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--gpus", gpus]
    fake.whys, fake.flexes = whys, [flex_of("h100-worked", 9, 9), flex_of("pods", 60, 40)]
    assert run(["why", "research", *words]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert run(["why", "research", *words, "--all"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == lines[0]
    assert "--all" not in told[1]
    assert told[2] == ""


def test_it_goes_on_when_the_gate_can_open_and_not_when_it_looks_next(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    soak = Condition(name="soak", met=False, text="soaking", until=NOW + timedelta(hours=5))
    notice = Condition(name="notice", met=False, text="notice", until=NOW + timedelta(hours=9))
    waits = status(Stage.BUFFERED, needs="", holds=(), next_at=NOW, waiting_for=(soak, notice))
    fake.statuses = [waits]
    assert run(["why", "research", "--gpus", "400", "--all"]) == 0
    assert "is buffered; it can go on at 2026-01-31 21:00:00Z." in capsys.readouterr().out
    backed = Condition(name="backed", met=False, text="health does not back it")
    fake.statuses = [waits.model_copy(update={"waiting_for": (soak, backed)})]
    assert run(["why", "research", "--gpus", "400", "--all"]) == 0
    assert "is buffered. See `backstop status h100-worked`." in capsys.readouterr().out, "nobody knows when"


def test_stale_health_is_said(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    fake.whys = [asked(400).model_copy(update={"health_stale": True})]
    assert run(["why", "research", "--gpus", "400", "--all"]) == 0
    assert (
        "Based on the cluster's health of 2026-01-31 12:00:00Z; that is stale, and nothing newer is known."
        in capsys.readouterr().out
    )


def test_whose_gate_it_is_and_where_there_is_room(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    fake.whys = [asked(40, quotas=GATED, usage=held(research=0), namespace="training", block=True)]
    fake.flexes = [flex_of("pods", 60, 40, 20), flex_of("quiet", 80, None)]
    fake.unanswered = {"b": "the health of cluster b is unknown"}
    assert run(["why", "research", "--gpus", "40", "--block", "--namespace", "training", "--all"]) == 0
    shown = capsys.readouterr().out
    assert (
        "Only the namespaces research and evals may target this quota, not training: a change of the fleet file"
        in shown
    )
    assert "Free flex elsewhere as one block: 40 GPUs in pods (H100); at most 80 GPUs in quiet (H100)." in shown
    assert "The health of cluster b is unknown." in shown
    fake.flexes = [flex_of("pods", 60, 30, 30)]
    assert run(["why", "research", "--gpus", "40", "--block", "--all"]) == 0
    assert "No other cluster of this GPU model is known to have a free block of that size" in capsys.readouterr().out


def test_the_answer_as_json(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", "research", "--cluster", "h100-worked", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "backstop.why/1"
    (one,) = found["clusters"]
    assert sum(r["gpus"] for r in one["reasons"]) == one["gap_gpus"] == 336
    assert (one["own_jobs_gpus"], one["lacking_gpus"]) == (310, 26), "in use by its own jobs, and missing"


def test_a_team_that_nobody_knows_is_refused(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    fake.whys = []
    assert run(["why", "nobody"]) == 2
    assert "no cluster in the ledger has a quota of team 'nobody'" in capsys.readouterr().err
    fake.unanswered = {"a": "the health of cluster a is unknown"}
    assert run(["why", "research"]) == 2
    assert "the health of cluster a is unknown" in capsys.readouterr().err
    assert run(["why", "research", "--gpus", "-1"]) == 2
    assert "--gpus must be a whole number from 1 to 10000000, not -1" in capsys.readouterr().err


def test_a_rollout_is_told_in_words_and_a_rehearsal_as_one() -> None:
    """A researcher read that it was rolled_back, held by unknown_health, and not that nothing had been written."""
    lost = Hold(id="h", kind=HoldKind.UNKNOWN_HEALTH, reason="no believable health", actor="health", at=NOW)
    found = status(Stage.ROLLED_BACK, shadow=True, holds=(lost,), needs="rolled back")
    parts = in_full(WhyAnswers(teams=(asked(),)), {"h100-worked": found}, [])
    words = " ".join(str(part) for part in parts)
    assert "A rehearsal (shadow: nothing is written) of h100-worked is rolled back; held: unknown health, no" in words
    real = in_full(WhyAnswers(teams=(asked(),)), {"h100-worked": found.model_copy(update={"shadow": False})}, [])
    assert "A rollout of h100-worked is rolled back; held: unknown health, " in " ".join(str(part) for part in real)


def test_the_quota_before_a_rollout_has_its_digits_in_groups() -> None:
    (team,) = status(Stage.MONITORED).teams
    found = status(Stage.MONITORED, teams=(team.model_copy(update={"baseline_gpus": 4000}),))
    words = " ".join(str(part) for part in in_full(WhyAnswers(teams=(asked(),)), {"h100-worked": found}, []))
    assert "is monitored: without it the quota would be 4,000" in words


# --- a block and the weaker classes of its own quota ------------------------------------------------

ISLANDS = (Island(name="a", total_gpus=400, healthy_gpus=400), Island(name="b", total_gpus=128, healthy_gpus=128))


def run_by(name: str, gpus: int, job_class: str | None, island: str | None = "a", hours: float = 1, **more: Any) -> Job:
    fields = {"job": name, "team": "research", "gpus": gpus, "job_class": job_class, "island": island, **more}
    return Job.model_validate({"started": NOW - hours * timedelta(hours=1), **fields})


def block_of(gpus: int, *jobs: Job, quota: int = 460, **more: Any) -> TeamWhy:
    """Return the team's answer in islands of 400 and 128, with all its jobs known by name."""
    classes = more.pop("classes", ("training", "engines", "dev"))
    mine = sum(j.gpus for j in jobs if j.team == "research" and j.on is RunsOn.QUOTA)
    quotas = (Present(team="research", gpus=quota, classes=classes), Present(team="evals", gpus=60))
    usage = {
        "research": TeamUsage(team="research", scheduled_gpus=mine),
        "evals": TeamUsage(team="evals", scheduled_gpus=sum(j.gpus for j in jobs if j.team == "evals")),
    }
    seen = {"quotas": quotas, "usage": usage, **more}
    return asked(gpus, block=True, islands=ISLANDS, jobs=jobs, history={}, **seen)


E = [run_by("e1", 24, "engines", hours=9), run_by("e2", 16, "engines"), run_by("e3", 20, "engines", "b")]
T = run_by("t", 64, "training", "b")


@pytest.mark.parametrize(
    ("found", "freed"),
    [
        (block_of(370, *E), ["e2"]),  # 360 are free of a
        (block_of(380, *E), ["e1"]),  # the one that is enough, and no other beside it
        (block_of(390, *E), ["e2", "e1"]),
        (block_of(370, *E, T), ["e2", "e3"]),  # 34 more are left of the quota: e3 gives these elsewhere
        (block_of(370, *E, T, quota=500), ["e2"]),
        (block_of(370, *E, quota=420), ["e2"]),
        (block_of(400, *E, quota=400), ["e2", "e3", "e1"]),
        (block_of(370, *E, run_by("d", 8, "dev", hours=99)), ["d", "e2"]),  # the weakest first, though the oldest
        (block_of(352, *E, run_by("t1", 64, "training")), None),  # no engine holds what it lacks
        (block_of(352, *E, run_by("o", 64, "engines", team="evals")), None),  # another team's are not its own
        (block_of(370, *E, classes=()), None),
        (block_of(370, run_by("f", 60, "engines", on="flex")), None),  # it fits as it is
        (block_of(340, *E), None),
        (block_of(500, *E), None),
    ],
)
def test_a_block_that_weaker_jobs_of_its_own_quota_keep_out_names_them(found: TeamWhy, freed: list[str] | None) -> None:
    assert (None if found.weaker is None else [j.job for j in found.weaker.jobs]) == freed
    assert sum(r.gpus for r in found.reasons) == found.gap_gpus


def test_it_is_said_which_of_its_own_jobs_hold_what_a_block_needs(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = (
        "What would free it: the block would start if 2 jobs of its own quota in a, b yielded (engines: e3 20, e2 16): "
        "a block has the strongest class, training, and inside a quota weaker classes yield."
    )
    found = WhyAnswers(teams=(block_of(370, *E, T),))
    for parts in (in_full(found, {}, []), summary(found, [], hint=False)):
        show(*parts)
        assert sentence in " ".join(capsys.readouterr().out.split())


UNKNOWN = {"b": "the health of cluster b is unknown", "c": "the health of cluster c is unknown"}


@pytest.mark.parametrize(
    ("found", "unanswered", "said"),
    [
        (asked(9), {}, "Nothing keeps jobs from starting."),
        (
            asked(quotas=(Present(team="research", gpus=0),)),
            {},
            "No job can start inside a quota of 0 GPUs: `backstop request` asks for more.",
        ),
        (asked(9), UNKNOWN, "Nothing keeps jobs from starting in h100-worked. b, c are not counted: --all says why."),
        (asked(20), UNKNOWN, "b, c are not counted: --all says why."),
        (asked(), {}, "2 more reasons: see --all."),
        (asked(), {"b": UNKNOWN["b"]}, "2 more reasons. b is not counted: --all says why."),
    ],
)
def test_clusters_of_which_nothing_is_known_are_named_and_are_no_reasons(
    found: TeamWhy, unanswered: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(*summary(WhyAnswers(teams=(found,), unanswered=unanswered), [], hint=True))
    text = capsys.readouterr().out
    assert text.rstrip().endswith(said)
    assert text.count("--all") <= 1
    assert "reason" not in text or said.startswith("2 more reasons")


def test_what_would_free_a_block_is_no_more_certain_than_where_jobs_run() -> None:
    nowhere = run_by("e4", 8, "engines", None)
    spans = run_by("t1", 8, "training", None)
    guest = run_by("v", 40, None, "b", team="evals")
    could = "the block could start, as far as Backstop knows where jobs run, if "

    def said(found: TeamWhy) -> str:
        return "" if found.weaker is None else found.weaker.text

    assert said(block_of(370, *E, guest)).startswith("the block would start if 1 job of its own quota in a yielded")
    assert said(block_of(370, *E, spans)).startswith(f"{could}1 job of its own quota in a yielded (engines: e2 16)")
    assert said(block_of(400, *E, nowhere, quota=400)).startswith(f"{could}4 jobs of its own quota yielded (engines: ")
    placed = guest.model_copy(update={"island": None})
    assert said(block_of(370, *E, placed)).startswith(could), "nor does it for another team's"
    unnamed = {"research": TeamUsage(team="research", scheduled_gpus=60)}
    assert said(block_of(370, *E, usage=unnamed)).startswith(could), "of evals nobody says what it holds"
    only_there = (
        Present(team="research", gpus=460, classes=("training", "engines")),
        Present(team="evals", gpus=60, islands=("b",)),
    )
    found = block_of(370, *E, placed, usage=unnamed, quotas=only_there)
    assert said(found).startswith("the block would start"), "it has one island to run in"


@pytest.mark.parametrize("usage", [{}, {"research": TeamUsage(team="research", scheduled_gpus=61)}])
def test_where_not_all_jobs_of_a_quota_are_named_nobody_says_what_would_free_a_block(usage: dict[str, Any]) -> None:
    assert block_of(370, *E).weaker is not None
    assert block_of(370, *E, usage=usage).weaker is None


CLASSED_JOBS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from(["training", "engines", "dev"]), st.sampled_from("ab")), max_size=6
)


@settings(max_examples=examples(150), deadline=None)
@given(jobs=CLASSED_JOBS, gpus=st.integers(1, 12), quota=st.integers(12, 24))
def test_who_yields_to_a_block_is_enough_no_more_and_nobody_else(
    jobs: list[tuple[int, str, str]], gpus: int, quota: int
) -> None:
    """Two islands of 12, against every set of weaker jobs that there is."""
    running = [run_by(f"j{n}", size, rank, island) for n, (size, rank, island) in enumerate(jobs)]
    assume(all(sum(j.gpus for j in running if j.island == one) <= 12 for one in "ab"))
    assume(sum(j.gpus for j in running) <= quota)
    islands = tuple(Island(name=name, total_gpus=12, healthy_gpus=12) for name in "ab")
    usage = {"research": TeamUsage(team="research", scheduled_gpus=sum(j.gpus for j in running))}
    quotas = (Present(team="research", gpus=quota, classes=("training", "engines", "dev")),)
    found = asked(gpus, block=True, quotas=quotas, usage=usage, islands=islands, jobs=running, history={})

    def starts(gone: Sequence[Job]) -> bool:
        left = [j for j in running if j not in gone]
        room = max(12 - sum(j.gpus for j in left if j.island == one) for one in "ab")
        return min(room, quota - sum(j.gpus for j in left)) >= gpus

    weaker = [j for j in running if j.job_class != "training"]
    sets = [c for many in range(len(weaker) + 1) for c in combinations(weaker, many) if starts(c)]
    if starts(()) or not sets:
        assert found.weaker is None
        return
    assert found.weaker is not None
    named = {j.job for j in found.weaker.jobs}
    chosen = [j for j in weaker if j.job in named]
    assert starts(chosen)
    assert not any(starts([j for j in chosen if j is not one]) for one in chosen)
    if any(all(j.job_class == "dev" for j in c) for c in sets):
        assert all(j.job_class == "dev" for j in chosen), "no engine where the weakest alone would do"
