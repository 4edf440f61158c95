"""Numbers of four digits and more are read in groups, wherever a model or a page makes the sentence."""

from __future__ import annotations

import re

import pytest

from cli.output import show
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot
from models.planning.plan import Plan, make_plan
from models.rollout.stages import Command, Stage
from models.rollout.status import details_of
from models.texts import count_text, gpus_text
from tests.unit.pure_world import World, quota
from tests.unit.test_stuck import QUICK
from views.plan import plan_parts

LARGE = re.compile(r"(?<![\w,.:/-])\d{4,}(?![\w.:/-])")
"""Neither of a date, nor of a hash or a name."""
TEN = 10_000


def large(**more: object) -> World:
    """The issue's own case, tenfold thousands: T = 36,100, quotas 20,000 and 16,100."""
    quotas = (quota("a", 2 * TEN), quota("b", 16_100, busy=TEN))
    return World(quotas, {"main": (36_100, 36_100)}, **{**QUICK, "max_moved_gpus": 10**6, **more})


def test_the_archive_of_a_large_cluster_groups_digits() -> None:
    world = large().start()
    world.until(Stage.MONITORED)
    world.healthy(3 * TEN)
    world.wait("1d")
    world.foreign("b", 9_000)
    world.say(Command.ROLLBACK)
    told = [text for text in world.story if re.search(r"\d,\d{3}", text)]
    assert any(text.startswith("plan ") for text in told)
    assert any(text.startswith("set_soft: b 16,100 -> 1") for text in told)
    changed_by_others = re.compile(r"changed? by others|^drift:")  # compared with the hold that stands
    assert [t for t in world.story if LARGE.search(t) and not changed_by_others.search(t)] == []
    assert not LARGE.search(details_of(world.r, world.now).partition("drift:")[0])


def plan_of(*quotas: Quota, cluster: str = "c1", islands: tuple[Island, ...] = ()) -> Plan:
    held = islands or (Island(name="main", total_gpus=36_100, healthy_gpus=3 * TEN),)
    snapshot = Snapshot(cluster=cluster, generation=1, islands=held, quotas=quotas, usage_from="instant")
    return make_plan(snapshot, Policy())


def test_a_cut_s_reason_is_read_in_groups_and_kept_without_as_the_hash_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_of(quota("a", 2 * TEN), quota("b", 16_100, busy=TEN))
    show(*plan_parts(plan))
    shown = " ".join(capsys.readouterr().out.split())
    reasons = [cut.reason for q in plan.quotas for cut in q.cuts]
    assert any("30000 healthy of 36100 GPUs" in reason for reason in reasons)
    assert "c1 has 30,000 healthy of 36,100 GPUs and may promise" in shown
    why = shown.partition(" Why ")[2].partition(f" Plan {plan.hash}")[0]
    assert why
    assert not LARGE.search(why)


def test_names_that_are_numbers_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    islands = (
        Island(name="2048", total_gpus=TEN, healthy_gpus=5000),
        Island(name="other", total_gpus=2 * TEN, healthy_gpus=2 * TEN),
    )
    plan = plan_of(quota("a", TEN, islands=("2048",)), quota("b", 9_000), cluster="1024", islands=islands)
    show(*plan_parts(plan))
    shown = " ".join(capsys.readouterr().out.split())
    assert "its island (2048) has 5,000 healthy GPUs" in shown
    assert "; 1024 has " in shown or "1024 has" not in " ".join(c.reason for q in plan.quotas for c in q.cuts)


@pytest.mark.parametrize(("number", "text"), [(1, "1 GPU"), (999, "999 GPUs"), (1000, "1,000 GPUs"), (0, "0 GPUs")])
def test_counts_of_things(number: int, text: str) -> None:
    assert gpus_text(number) == text
    assert count_text(number, "GPU") == text
