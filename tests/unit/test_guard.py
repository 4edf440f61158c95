"""The guard: what is believed of health, when a shortage is a breach, and what a window excuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from models.cluster.island import Island
from models.cluster.readings import Doubt, HealthSample
from models.cluster.windows import Window, WindowKind, active, without_absences
from models.rollout.guard import Clocks, Sight

T0 = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
BREACH, CLEAR = timedelta(minutes=10), timedelta(minutes=30)
DROP = Fraction(20, 100)


def minutes(count: float) -> datetime:
    return T0 + timedelta(minutes=count)


def seen(*looks: tuple[float, dict[str, int]]) -> Clocks:
    """The clocks after looks at these minutes."""
    clocks = Clocks()
    for at, shortage in looks:
        clocks = clocks.after_shortage(shortage, minutes(at), CLEAR)
    return clocks


def breached(clocks: Clocks, at: float) -> tuple[str, ...]:
    return clocks.breached_teams(minutes(at), BREACH)


# --- hysteresis ------------------------------------------------------------------------------


def test_a_blip_shorter_than_breach_after_breaches_nothing() -> None:
    clocks = seen((0, {"a": 8}), (9.9, {}))
    assert breached(clocks, 9.9) == ()
    assert breached(clocks, 1000) == ()
    assert clocks.next_breach(BREACH) is None


def test_a_shortage_breaches_after_exactly_breach_after() -> None:
    clocks = seen((0, {"a": 8}))
    assert clocks.next_breach(BREACH) == minutes(10)
    assert breached(clocks, 9.999) == ()
    assert breached(clocks, 10) == ("a",)
    assert clocks.at_risk == {"a": 8}


def test_flapping_accumulates() -> None:
    clocks = seen((0, {"a": 8}), (4, {}), (20, {"a": 8}), (24, {}), (40, {"a": 1}))
    assert clocks.next_breach(BREACH) == minutes(42)
    assert breached(clocks, 41.9) == ()
    assert breached(clocks, 42) == ("a",)


def test_the_timer_starts_anew_only_after_clear_after_of_good() -> None:
    almost = seen((0, {"a": 8}), (8, {}), (37.9, {"a": 8}))
    assert almost.next_breach(BREACH) == minutes(39.9)
    long_enough = seen((0, {"a": 8}), (8, {}), (38, {"a": 8}))
    assert long_enough.next_breach(BREACH) == minutes(48)


def test_looks_in_between_change_nothing() -> None:
    few, many = seen((0, {"a": 8}), (30, {})), seen((0, {"a": 8}), (3, {"a": 9}), (7, {"a": 2}), (30, {}))
    assert few.by_team["a"].earlier == many.by_team["a"].earlier == timedelta(minutes=30)


def test_each_quota_has_its_own_timer() -> None:
    clocks = seen((0, {"a": 8}), (6, {"a": 8, "b": 4}), (9, {"b": 4}))
    assert clocks.next_breach(BREACH) == minutes(16)
    assert clocks.next_breach(BREACH, but=("b",)) is None
    assert breached(clocks, 16) == ("b",)
    assert clocks.at_risk == {"b": 4}


def test_a_block_without_a_place_is_a_shortage_of_no_gpu() -> None:
    assert breached(seen((0, {"a": 0})), 10) == ("a",)


def test_health_is_good_since_everything_was_backed() -> None:
    assert seen((0, {"a": 8}), (5, {}), (9, {})).all_good_since == minutes(5)
    assert seen((0, {}), (5, {"a": 1})).all_good_since is None


def test_a_shortage_that_a_window_explains_is_no_breach_and_not_good_either() -> None:
    clocks = Clocks().after_shortage({}, T0, CLEAR, backed=False)
    assert clocks.all_good_since is None
    assert clocks.next_breach(BREACH) is None


def test_a_quota_that_is_good_for_long_is_forgotten() -> None:
    assert seen((0, {"a": 8}), (5, {}), (40, {})).by_team == {}


def test_who_is_short_is_told_what_it_lacks() -> None:
    assert seen((0, {"a": 8, "b": 1})).lacks(["a", "b"]) == "a lacks 8 GPUs, b lacks 1 GPU"
    assert seen((0, {"a": 0})).lacks(["a"]) == "a has a protected block that no island holds"


def test_who_is_backed_again_is_not_told_that_a_block_is_missing() -> None:
    clocks = seen((0, {"a": 8, "b": 4}), (5, {"b": 4}))
    assert clocks.lacks(["a", "b"]) == "b lacks 4 GPUs"
    assert clocks.lacks(["a"]) == "the quotas are backed again, but not yet for long enough"


# --- sight -----------------------------------------------------------------------------------


def sample(at: float, healthy: int, total: int = 100) -> HealthSample:
    return HealthSample(
        cluster="c", at=minutes(at), islands=(Island(name="i", total_gpus=total, healthy_gpus=healthy),)
    )


def sight(*samples: HealthSample, confirm: int = 2) -> Sight:
    found = Sight()
    for one in samples:
        found = found.after_sample(one, DROP, confirm)
    return found


def test_the_first_sample_is_believed() -> None:
    assert Sight().unknown
    assert sight(sample(0, 3)) == Sight(known=sample(0, 3))


@pytest.mark.parametrize(("healthy", "unknown"), [(80, False), (79, True), (100, False)])
def test_a_drop_is_implausible_above_the_share_of_the_cluster(healthy: int, unknown: bool) -> None:
    assert sight(sample(0, 100), sample(1, healthy)).unknown is unknown


def test_a_long_decline_in_plausible_steps_is_believed() -> None:
    assert sight(*(sample(i, 100 - 20 * i) for i in range(6))).known == sample(5, 0)


def test_an_implausible_drop_is_unknown_until_enough_samples_agree() -> None:
    one_more = sight(sample(0, 100), sample(1, 10), sample(2, 10))
    assert one_more.unknown
    assert one_more.known == sample(0, 100)
    assert sight(sample(0, 100), sample(1, 10), sample(2, 10), sample(3, 12)) == Sight(known=sample(3, 12))


def test_one_plausible_sample_ends_the_suspicion() -> None:
    assert sight(sample(0, 100), sample(1, 10), sample(2, 95)) == Sight(known=sample(2, 95))


def test_a_rise_that_repairs_do_not_explain_is_unknown_until_enough_samples_agree() -> None:
    up = [sample(0, 60), sample(1, 81), sample(2, 81), sample(3, 90)]
    assert sight(*up[:2]) == Sight(known=sample(0, 60), suspect=sample(1, 81))
    assert sight(*up[:2]).is_rising
    assert sight(*up[:3]).known == sample(0, 60)
    assert sight(*up) == Sight(known=sample(3, 90))
    assert not sight(sample(0, 60), sample(1, 80)).unknown
    before = Sight(known=sample(0, 60))  # a history from before
    assert before.after_sample(sample(1, 100), DROP, 2, rises=False) == Sight(known=sample(1, 100))


def doubt(before: HealthSample) -> Doubt:
    return Doubt(source="dcgm", why="many fell", since=minutes(0), before=before)


def test_no_number_of_samples_confirms_what_a_source_in_doubt_says() -> None:
    lied = Sight(known=sample(0, 100))
    for at in range(1, 9):
        lied = lied.after_doubted_sample(sample(at, 40), doubt(sample(0, 100)))
    assert (lied.known, lied.suspect, lied.doubted) == (sample(0, 100), sample(8, 40), "dcgm")


def test_what_was_believed_before_the_source_came_in_doubt_is_taken_back() -> None:
    assert Sight(known=sample(3, 81)).after_doubted_sample(sample(4, 81), doubt(sample(0, 100))).known == sample(0, 100)


@pytest.mark.parametrize("healthy", [40, 100], ids=["confirmed", "mended"])
def test_once_the_doubt_is_over_the_next_sample_counts(healthy: int) -> None:
    lied = Sight(known=sample(0, 100)).after_doubted_sample(sample(1, 40), doubt(sample(0, 100)))
    assert lied.after_sample(sample(2, healthy), DROP, 2) == Sight(known=sample(2, healthy))


def test_noise_confirms_nothing() -> None:
    jumping = sight(sample(0, 100), *(sample(i, 5 if i % 2 else 60) for i in range(1, 9)))
    assert jumping.unknown
    assert jumping.known == sample(0, 100)


def test_a_repeat_of_the_same_sample_is_no_agreement() -> None:
    same = sight(sample(0, 100), *[sample(1, 10)] * 10)
    assert same.unknown
    assert same.agreeing == 0
    assert same == same.after_sample(sample(1, 10), DROP, 2)


def test_older_samples_are_ignored() -> None:
    assert sight(sample(5, 100), sample(4, 90)).known == sample(5, 100)
    suspicious = sight(sample(5, 100), sample(7, 10), sample(6, 100))
    assert suspicious == sight(sample(5, 100), sample(7, 10))


def test_a_person_confirms() -> None:
    suspicious = sight(sample(0, 100), sample(1, 10))
    assert suspicious.confirm_suspect() == Sight(known=sample(1, 10))
    assert Sight(known=sample(0, 100)).confirm_suspect() == Sight(known=sample(0, 100))


def test_without_samples_to_confirm_a_drop_is_believed_at_once() -> None:
    assert sight(sample(0, 100), sample(1, 0), confirm=0) == Sight(known=sample(1, 0))


def test_the_drop_is_measured_against_what_was_installed_when_it_was_good() -> None:
    """Deleting nodes lowers T as well: it is still a drop."""
    assert sight(sample(0, 100, 100), sample(1, 50, 50)).unknown


# --- declared absences -----------------------------------------------------------------------

X, Y = Island(name="X", total_gpus=200, healthy_gpus=150), Island(name="Y", total_gpus=100, healthy_gpus=90)


def window(kind: WindowKind = WindowKind.MAINTENANCE, gpus: int | None = None, *islands: str) -> Window:
    return Window(kind=kind, starts=minutes(0), ends=minutes(60), reason="switches", islands=islands or None, gpus=gpus)


def as_if(*windows: Window, at: float = 1) -> tuple[int, ...]:
    return tuple(i.healthy_gpus for i in without_absences((X, Y), windows, minutes(at)))


@pytest.mark.parametrize("kind", [WindowKind.MAINTENANCE, WindowKind.SEV])
def test_a_window_excuses_what_it_declares_and_no_more(kind: WindowKind) -> None:
    assert as_if(window(kind)) == (200, 100)
    assert as_if(window(kind, None, "X")) == (200, 90)
    assert as_if(window(kind, 20, "X")) == (170, 90)
    assert as_if(window(kind, 55)) == (200, 95)
    assert as_if(window(kind, 5, "Y"), window(kind, 3, "Y")) == (150, 98)
    assert as_if(window(kind, 500, "Y")) == (150, 100)
    assert as_if(window(kind, None, "elsewhere")) == (150, 90)


def test_a_freeze_excuses_nothing() -> None:
    assert as_if(window(WindowKind.FREEZE)) == (150, 90)


@pytest.mark.parametrize(("at", "excused"), [(-0.1, False), (0, True), (59.9, True), (60, False)])
def test_a_window_excuses_from_its_start_to_just_before_its_end(at: float, excused: bool) -> None:
    assert (as_if(window(), at=at) == (200, 100)) is excused
    assert (active([window()], minutes(at)) == (window(),)) is excused


def test_islands_that_nothing_is_missing_from_stay_as_they_are() -> None:
    whole = Island(name="X", total_gpus=200, healthy_gpus=200, block_gpus=96)
    assert without_absences((whole, Y), [window(WindowKind.SEV)], minutes(1))[0] == whole
