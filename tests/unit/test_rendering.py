"""Every notice says in plain words, and with the right numbers, what the reader needs."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from activities.notices.rendering import TO_OWNER, render
from models.base import Since
from models.errors import BadInput
from models.notices import Notice, NoticeKind
from models.rollout.stages import Stage
from web.console.pages import PAGES
from workers.settings import load_settings

AT = datetime(2025, 6, 3, 9, tzinfo=UTC)
FULLEST: dict[str, Any] = {
    "effective_at": AT,
    "before_gpus": 345,
    "after_gpus": 310,
    "phantom_gpus": 26,
    "to_flex_gpus": 9,
    "reasons": ("35 GPUs of the quota are held by no running job", "a second reason"),
    "backing_gpus": 300,
    "stage": "enforced",
    "detail": "One more thing.",
    "facts": {
        "until": "2025-06-05T10:00:00+00:00",
        "left": ["release the reservation of h100-a", "restore team-a"],
        "commands": ["backstop approve h100-a 0123456789abcdef"],
    },
}
BY_DETAIL = (NoticeKind.AT_RISK, NoticeKind.BREACH, NoticeKind.ROLLED_BACK)
"""Kinds that something else than the plan explains: why is in the detail."""
OWNER_KINDS = (NoticeKind.STUCK, NoticeKind.HELD, NoticeKind.BREACH)
KINDS = tuple(kind for kind in NoticeKind if kind is not NoticeKind.DIGEST)
"""Of single notices."""
TEAM_KINDS = tuple(kind for kind in KINDS if kind not in TO_OWNER)


def notice(kind: NoticeKind, **values: Any) -> Notice:
    given = {"key": "k", "cluster": "h100-a", "audience": "team-a", "owner": "capacity-owners", **values}
    return Notice(kind=kind, **given)


def text(kind: NoticeKind, **values: Any) -> str:
    return "\n".join(render(notice(kind, **values)))


def cut(kind: NoticeKind, before: int, after: int, phantom: int, **values: Any) -> str:
    numbers = {"before_gpus": before, "after_gpus": after, "phantom_gpus": phantom}
    return text(kind, **numbers, to_flex_gpus=before - after - phantom, **values)


# --- every kind -------------------------------------------------------------------------------


def test_every_kind_has_a_template_and_every_template_a_kind() -> None:
    names = {entry.name for entry in files("activities").joinpath("templates").iterdir()}
    assert {name for name in names if name.endswith(".txt")} - {"base.txt", "parts.txt", "entry.txt"} == {
        f"{kind.value}.txt" for kind in NoticeKind
    }


@pytest.mark.parametrize("kind", NoticeKind)
def test_every_kind_is_explained_in_the_docs(kind: NoticeKind) -> None:
    assert f"\n| `{kind.value}` |" in (Path(__file__).parents[2] / "docs" / "notices.md").read_text()


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("values", [{}, FULLEST], ids=["least", "fullest"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_renders_the_least_and_the_fullest_notice(
    kind: NoticeKind, values: dict[str, Any], shadow: bool
) -> None:
    subject, body = render(notice(kind, shadow=shadow, **values))
    assert subject.startswith("[Rehearsal] h100-a: " if shadow else "h100-a: ")
    assert "\n" not in subject
    assert "Hello team-a," in body
    assert ("capacity-owners" in body) == (kind in TEAM_KINDS)
    for reason in values.get("reasons", ()):
        assert (f"- {reason}\n" in body) == (kind not in BY_DETAIL or kind is NoticeKind.ROLLED_BACK)
    assert values.get("detail", "") in body


NUMBERS = (None, 0, 1, 2, 12)


@pytest.mark.parametrize("audience", ["team-a", "capacity-owners"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_numbers_make_bad_english(kind: NoticeKind, audience: str) -> None:
    for before, after, backing, dated in itertools.product(NUMBERS, NUMBERS, NUMBERS, (False, True)):
        gone = max(0, (before or 0) - (after or 0)) if None not in (before, after) else 0
        for phantom in {0, min(1, gone), gone}:
            subject, body = render(
                notice(
                    kind,
                    audience=audience,
                    before_gpus=before,
                    after_gpus=after,
                    backing_gpus=backing,
                    phantom_gpus=phantom,
                    to_flex_gpus=gone - phantom,
                    effective_at=AT if dated else None,
                )
            )
            said = f"{subject}\n{body}"
            plain = said.replace('"..."', "")
            assert not re.search(r"\b1 GPUs|\b1 (of \w+ )?(are|move|were)\b|\b(?!1 )\d+ GPU\b", said), said
            assert not re.search(r"None\b(?! of)|\bnan\b|\bUndefined\b|-\d| ,| \.|\.\.|[(][)]", plain), said
            assert not re.search(r"[^ \n]  |\n\n\n|:\n\n|\A\s|[ \t]$", said, re.MULTILINE), said
            assert "haircut" not in said.lower()
            assert "phantom" not in said.lower()


# --- the numbers ------------------------------------------------------------------------------


def test_the_worked_case_is_told_with_its_numbers() -> None:
    subject, body = render(notice(NoticeKind.PLANNED, **FULLEST))
    assert subject == "h100-a: the quota of team-a goes from 345 to 310 GPUs (from 3 June 2025)"
    assert "from 345 to 310 GPUs (35 fewer), not before Tuesday 3 June 2025, 09:00 UTC" in body
    assert "- 26 of them had no healthy GPU behind them when this was planned." in body
    assert "- 9 of them move to the cluster's flex pool, where your jobs can go on using them" in body
    assert "Nothing that is running is killed" in body


@pytest.mark.parametrize("earlier", [False, True])
def test_since_when_no_healthy_gpu_stood_behind_them_is_told_where_it_is_known(earlier: bool) -> None:
    body = text(NoticeKind.PLANNED, **FULLEST, phantom_since=Since(at=AT, or_earlier=earlier))
    assert (
        "- 26 of them had no healthy GPU behind them when this was planned, nor at any time since Tuesday 3 June 2025, "
        f"09:00 UTC{' (earlier is not known)' * earlier}.\n" in body
    )
    assert not re.search("never|ever was|count on", body)


@pytest.mark.parametrize(
    ("before", "after", "phantom", "said", "not_said"),
    [
        (
            345,
            344,
            1,
            ["(1 fewer)", "About this GPU:", "It had no healthy GPU behind it when this was planned."],
            ["flex pool, where", "never"],
        ),
        (345, 344, 0, ["About this GPU:", "It moves to the cluster's flex pool"], ["stood"]),
        (2, 1, 0, ["from 2 to 1 GPU (1 fewer)"], ["1 GPUs"]),
        (345, 332, 13, ["None of them had a healthy GPU behind it when"], ["flex pool, where", "never"]),
        (345, 332, 0, ["All 13 move to the cluster's flex pool"], ["stood"]),
        (345, 332, 12, ["12 of them had no healthy GPU behind them", "1 of them moves to", "go on using it."], []),
        (345, 332, 1, ["1 of them had no healthy GPU behind it", "12 of them move to"], []),
        (12, 0, 0, ["from 12 to 0 GPUs (12 fewer)", "your jobs in this cluster run as flex"], []),
        (64, 64, 0, ["stays at 64 GPUs", "takes nothing from you"], ["date", "fewer", "About", "killed"]),
        (310, 345, 0, ["goes up from 310 to 345 GPUs (35 more)"], ["fewer", "About", "killed"]),
        (0, 1, 0, ["goes up from 0 to 1 GPU (1 more)"], ["fewer"]),
    ],
)
def test_a_planned_change_reads_right(
    before: int, after: int, phantom: int, said: list[str], not_said: list[str]
) -> None:
    body = text(
        NoticeKind.PLANNED,
        before_gpus=before,
        after_gpus=after,
        phantom_gpus=phantom,
        to_flex_gpus=max(0, before - after - phantom),
    )
    assert [words for words in said if words not in body] == []
    assert [words for words in not_said if words in body] == []


def test_a_changed_plan_replaces_the_earlier_numbers() -> None:
    body = cut(NoticeKind.CHANGED, 345, 300, 26)
    assert "has changed before it took effect" in body
    assert "from 345 to 300 GPUs (45 fewer)" in body
    assert "replace the earlier ones" in body
    realigned = cut(NoticeKind.CHANGED, 345, 300, 26, stage="enforced", detail="the quotas were realigned in place")
    assert realigned.startswith("h100-a: the quota of team-a is now 300 GPUs; it was 345\n"), "it is in force"
    assert (
        "has changed, and the quotas were realigned in place. Your quota is now 300 GPUs; it was 345 (45 fewer).\n"
    ) in realigned
    assert realigned.count("realigned") == 1
    assert "before it took effect" not in realigned
    assert "replace the earlier ones" not in realigned
    assert "it is recorded, and a person answers" in realigned
    assert "the change then waits" in body


def test_buffered_says_that_the_value_is_soft_and_that_more_is_told() -> None:
    body = cut(NoticeKind.BUFFERED, 345, 310, 26, effective_at=AT)
    assert "is now 310 GPUs as of Tuesday 3 June 2025, 09:00 UTC; it was 345 (35 fewer)" in body
    assert "jobs beyond it, up to 345 GPUs, are still admitted, as flex" in body
    assert "told when it becomes firm" in body
    assert "soft" not in cut(NoticeKind.BUFFERED, 64, 64, 0)


def test_enforced_says_what_starts_above_the_quota_and_what_backs_it() -> None:
    body = cut(NoticeKind.ENFORCED, 345, 310, 26, backing_gpus=310)
    assert "firm at 310 GPUs; without the rollout it would be 345 (35 fewer)" in body
    assert "Jobs above it start only when they are submitted to flex" in body
    assert "All of its 310 GPUs are backed by healthy hardware" in body
    assert "Jobs there start only when they are submitted to flex" in cut(NoticeKind.ENFORCED, 12, 0, 0)


def test_monitored_says_that_the_hardware_is_watched() -> None:
    body = cut(NoticeKind.MONITORED, 345, 310, 26, backing_gpus=310)
    assert "stays at 310 GPUs" in body
    assert "Backstop watches that the quotas have healthy hardware behind them" in body


@pytest.mark.parametrize(
    ("backing", "said"),
    [
        (300, "300 of its 310 GPUs are backed by healthy hardware at the moment; 10 are not. A job"),
        (309, "309 of its 310 GPUs are backed by healthy hardware at the moment; 1 is not."),
        (0, "None of its 310 GPUs is backed"),
        (310, "is fully backed by healthy hardware again"),
        (None, "at risk: healthy hardware is missing"),
    ],
)
def test_at_risk_shows_both_numbers(backing: int | None, said: str) -> None:
    assert said in cut(NoticeKind.AT_RISK, 345, 310, 26, backing_gpus=backing)


def test_at_risk_in_a_window_says_until_when() -> None:
    facts = {"until": "2025-06-05T12:00:00+02:00"}
    assert "expected until Thursday 5 June 2025, 10:00 UTC" in text(NoticeKind.AT_RISK, facts=facts)
    assert "expected until" not in text(NoticeKind.AT_RISK)


def test_a_breach_tells_the_team_that_the_promise_is_withdrawn() -> None:
    body = cut(NoticeKind.BREACH, 345, 310, 26, backing_gpus=300)
    assert "promise is withdrawn" in body
    assert "300 of its 310 GPUs are backed by healthy hardware at the moment; 10 are not" in body
    assert "value of your quota has not changed" in body
    assert "What you can do" not in body


@pytest.mark.parametrize(
    ("to_owner", "subject", "said"),
    [
        (False, "the quota of team-a is in breach", "Backstop does not promise it until the hardware is back"),
        (True, "quotas are in breach", "Nothing was promised yet, and the teams are notified. The rollout was"),
    ],
)
def test_a_breach_before_enforced_withdraws_no_promise(to_owner: bool, subject: str, said: str) -> None:
    body = cut(NoticeKind.BREACH, 345, 310, 26, backing_gpus=300, stage="buffered", facts={"to_owner": to_owner})
    assert f"hardware is missing, {subject}\n" in body
    assert said in body
    assert "withdrawn" not in body


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (310, 345, "Your quota comes back up from 310 to 345 GPUs (35 more)."),
        (310, 300, "is now 300 GPUs; it was 310 (10 fewer)"),
        (310, 310, "Your quota is 310 GPUs."),
    ],
)
def test_rolled_back_says_where_the_quota_went(before: int, after: int, said: str) -> None:
    body = text(NoticeKind.ROLLED_BACK, before_gpus=before, after_gpus=after)
    assert said in body
    assert ("killed" in body) == (after < before)


def test_rolled_back_to_more_than_is_healthy_says_so() -> None:
    body = text(NoticeKind.ROLLED_BACK, before_gpus=310, after_gpus=345, backing_gpus=319)
    assert "319 of its 345 GPUs are backed by healthy hardware at the moment; 26 are not" in body


def test_numbers_of_another_cut_are_not_told() -> None:
    """A rollback's cut is not the plan's, whose phantom and flex parts come along."""
    body = text(NoticeKind.ROLLED_BACK, before_gpus=345, after_gpus=300, phantom_gpus=26, to_flex_gpus=9)
    assert "45 fewer" in body
    assert "stood" not in body


@pytest.mark.parametrize("kind", [*BY_DETAIL, NoticeKind.HELD, NoticeKind.STUCK])
def test_what_happened_is_told_by_the_detail(kind: NoticeKind) -> None:
    assert "\nWhy: team-a lacks 10 GPUs\n" in text(kind, detail="team-a lacks 10 GPUs")


def test_closed_says_that_the_promise_has_ended() -> None:
    body = cut(NoticeKind.CLOSED, 345, 310, 26)
    assert "stays at 310 GPUs. From now on it is no promise" in body
    assert "backstop" not in body  # there is nothing left to answer


def test_a_skip_of_a_failed_pilot_is_not_offered_as_the_answer_that_lifts_the_hold() -> None:
    body = text(NoticeKind.FLEET_HELD, cluster="_fleet", facts={"left": ["p1"]})
    assert "Leave p1 out, before you let it go on:\n    backstop fleet skip p1" in body


def test_the_reason_of_a_closing_does_not_stand_alone() -> None:
    assert "\n\nReason: moved to h100-b\n\n" in text(NoticeKind.CLOSED, detail="moved to h100-b")


@pytest.mark.parametrize(
    ("stage", "title"),
    [
        ("planned", "Why the quota was to change, in numbers of when this was planned:"),
        ("enforced", "Why the quota changed, in numbers of when this was planned:"),
    ],
)
def test_closed_before_anything_was_written_does_not_say_that_the_quota_changed(stage: str, title: str) -> None:
    body = cut(NoticeKind.CLOSED, 345, 310, 26, stage=stage, reasons=("35 GPUs are held by no running job",))
    assert [each for each in body.splitlines() if each.startswith("Why the quota")] == [title]


# --- what the reader can do -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [k for k in TEAM_KINDS if k not in (NoticeKind.CLOSED, NoticeKind.REQUEST)])
def test_a_team_reads_how_to_answer_and_whom_to_ask(kind: NoticeKind) -> None:
    body = text(kind, **FULLEST)
    assert "\n    backstop ack h100-a --team team-a\n" in body
    assert '\n    backstop object h100-a --team team-a --reason "..."\n' in body
    assert "Questions? Ask capacity-owners." in body


@pytest.mark.parametrize(
    "kind", [NoticeKind.PLANNED, NoticeKind.CHANGED, NoticeKind.BUFFERED, NoticeKind.ENFORCED, NoticeKind.BREACH]
)
def test_a_team_reads_how_to_use_flex(kind: NoticeKind) -> None:
    body = cut(kind, 345, 310, 26)
    assert "submit the job to the flex queue (in Slurm: sbatch -A and your team's flex account)" in body
    assert "Jobs inside a quota preempt it" in body
    assert "Nothing that is running is killed" in body


def test_commands_can_be_pasted_into_a_shell() -> None:
    body = text(NoticeKind.PLANNED, cluster="h100 a; rm", audience="team's")
    assert """backstop ack 'h100 a; rm' --team 'team'"'"'s'\n""" in body


@pytest.mark.parametrize("kind", OWNER_KINDS)
def test_the_owner_reads_what_is_left_and_which_commands_can_be_given(kind: NoticeKind) -> None:
    body = text(kind, audience="capacity-owners", **FULLEST)
    assert "\n- release the reservation of h100-a\n- restore team-a\n" in body
    assert "\n    backstop approve h100-a 0123456789abcdef\n" in body
    assert "backstop ack" not in body
    assert "Questions?" not in body


def test_where_no_commands_came_along_the_status_has_them() -> None:
    body = text(NoticeKind.HELD, stage="planned", audience="capacity-owners", detail="a pause")
    assert re.findall(r"\n    backstop (.*)", body) == ["status h100-a"], "no line that lacks what it needs"


@pytest.mark.parametrize(
    ("kind", "stage", "facts", "what"),
    [
        (NoticeKind.AT_RISK, "buffered", {}, "the next step then waits until a person has answered"),
        (NoticeKind.AT_RISK, "monitored", {}, "it is recorded, and a person answers"),
        (NoticeKind.BREACH, "monitored", {}, "it is recorded, and a person answers"),
        (
            NoticeKind.BREACH,
            "monitored",
            {"goes_back": True},
            "the next attempt then waits until a person has answered",
        ),
        (NoticeKind.ROLLED_BACK, "rolled_back", {}, "the next attempt then waits until a person has answered"),
        (NoticeKind.CHANGED, "buffered", {}, "the next step then waits until a person has answered"),
    ],
)
def test_a_notice_says_what_an_objection_holds_in_that_stage(
    kind: NoticeKind, stage: str, facts: dict[str, Any], what: str
) -> None:
    assert f"To object; {what}:\n" in text(kind, stage=stage, facts=facts)


def test_a_hold_that_good_health_ends_does_not_say_that_only_a_person_does() -> None:
    said = {"stage": "monitored", "audience": "capacity-owners", "detail": "team-a lacks 10 GPUs"}
    held = "is held at monitored. It goes no further until a person answers"
    assert f"{held}.\n" in text(NoticeKind.HELD, **said)
    until = f"{held}, or until healthy hardware has backed all quotas for 30m.\n"
    assert until in text(NoticeKind.HELD, **said, facts={"recovers": "30m"})


def test_an_owner_who_learns_how_a_request_ended_reads_of_no_request_of_theirs() -> None:
    asker, owner = (
        text(NoticeKind.REQUEST, audience=who, owner="capacity, board", facts={"to_owner": False})
        for who in ("ann", "board")
    )
    assert asker.startswith("h100-a: your request for more quota\n")
    assert "Questions? Ask capacity, board." in asker
    assert owner.startswith("h100-a: a request for more quota\n")
    assert "Questions?" not in owner


def test_an_ended_rollout_has_nothing_to_answer() -> None:
    body = text(NoticeKind.ROLLED_BACK, facts={"ends": True})
    assert "The rollout has ended, and there is nothing to answer." in body
    assert "backstop" not in body


def test_an_abort_before_anything_was_applied_says_so() -> None:
    body = text(NoticeKind.CLOSED, stage="planned", before_gpus=345, after_gpus=345)
    assert "was ended before its plan was carried out. Your quota stays at 345 GPUs." in body
    assert "promise" not in body


STUCK = """\
Hello capacity-owners,

The rollout in cluster h100-a cannot go on by itself. It waits for you.

Why: undo, by tpm: evals are starved

What is not undone:
- set_soft: the quotas still have the rollout's values; restore failed: not allowed
- research has 306 GPUs, not 345

What you can do:
    backstop retry h100-a --reason '...'
Runs restore again and nothing else (research to 345).

    backstop close h100-a --reason '...'
Ends the rollout as it is: research stays at 306, not 345.
"""


def test_who_is_called_to_a_stuck_rollout_reads_what_is_not_undone_and_what_each_command_will_do() -> None:
    facts = {
        "left": [
            "set_soft: the quotas still have the rollout's values; restore failed: not allowed",
            "research has 306 GPUs, not 345",
        ],
        "commands": [
            {
                "does": "runs restore again and nothing else (research to 345)",
                "line": "backstop retry h100-a --reason '...'",
            },
            {
                "does": "ends the rollout as it is: research stays at 306, not 345",
                "line": "backstop close h100-a --reason '...'",
            },
        ],
    }
    told = {"audience": "capacity-owners", "stage": "stuck", "detail": "undo, by tpm: evals are starved"}
    subject, body = render(notice(NoticeKind.STUCK, facts=facts, **told))
    assert subject == "h100-a: the rollout is stuck and needs you"
    assert body == STUCK


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("kind", OWNER_KINDS)
def test_every_stage_renders_for_the_owner(kind: NoticeKind, stage: Stage) -> None:
    assert "Hello capacity-owners," in text(kind, stage=stage.value, audience="capacity-owners")


def test_whether_the_audience_owns_the_rollout_can_be_said() -> None:
    """If a team owns its own rollout, the names alone do not tell the two breach notices apart."""
    as_team = text(NoticeKind.BREACH, owner="team-a", facts={"to_owner": False})
    as_owner = text(NoticeKind.BREACH, owner="team-a")
    assert "backstop ack" in as_team
    assert "backstop status" in as_owner
    assert "backstop resolve" not in as_team


# --- rehearsals and free text -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_rehearsal_says_so_first(kind: NoticeKind) -> None:
    subject, body = render(notice(kind, shadow=True, **FULLEST))
    assert subject.startswith("[Rehearsal] ")
    assert body.startswith("This is a rehearsal: nothing changes.")


def test_free_text_cannot_break_a_subject_or_a_list() -> None:
    subject, body = render(
        notice(
            NoticeKind.HELD,
            owner="the\r\nBcc: everyone",
            reasons=("first\n- not a reason\n\nof its own",),
            detail="  two\nlines  \n",
            facts={"to_owner": False, "left": "one\ntext"},
        )
    )
    assert subject == "h100-a: the rollout is held and waits for the Bcc: everyone"
    assert "- first - not a reason of its own\n" in body
    assert "\n\ntwo\nlines\n" in body
    assert "- one text\n" in body


def test_words_in_templates_are_words_and_not_templates() -> None:
    assert "{{ 7 * 7 }} <b>&" in text(NoticeKind.PLANNED, detail="{{ 7 * 7 }} <b>&")


def test_times_are_told_in_utc() -> None:
    body = text(NoticeKind.PLANNED, effective_at="2025-12-31T23:30:00-02:00")
    assert "Thursday 1 January 2026, 01:30 UTC" in body


def test_the_same_notice_reads_the_same() -> None:
    assert render(notice(NoticeKind.PLANNED, **FULLEST)) == render(notice(NoticeKind.PLANNED, **FULLEST))


def test_a_quota_that_comes_back_up_is_not_explained_by_a_cut() -> None:
    """The second attempt: 345 before the rollout, 300 after the breach, 306 now. The reasons are of 345 -> 306."""
    reasons = ("35 GPUs of the quota are held by no running job (at this moment)",)
    _, body = render(notice(NoticeKind.BUFFERED, stage="buffered", before_gpus=300, after_gpus=306, reasons=reasons))
    assert "is now 306 GPUs; it was 300 (6 more)" in body
    assert "Why the quota was not raised further, in numbers of when this was planned:\n- 35 GPUs" in body
    assert "Why the quota changed" not in body


def test_reasons_that_add_up_to_more_than_the_change_say_of_what_they_are() -> None:
    """81 before the rollout, 65 since the last plan, 54 now: the reasons are of all 27."""
    numbers = {"before_gpus": 65, "after_gpus": 54, "phantom_gpus": 11, "to_flex_gpus": 16}
    reasons = ("11 GPUs of the quota are held by no running job", "16 GPUs are in use")
    _, body = render(notice(NoticeKind.CHANGED, stage="monitored", reasons=reasons, **numbers))
    assert "is now 54 GPUs; it was 65 (11 fewer)" in body
    assert "Why the quota has 27 GPUs fewer than without the rollout, in numbers of when this was planned:\n" in body
    assert "Why the quota changed" not in body
    _, body = render(notice(NoticeKind.CHANGED, stage="monitored", reasons=reasons, **numbers | {"before_gpus": 81}))
    assert "Why the quota changed, in numbers of when this was planned:\n- 11 GPUs" in body


@pytest.mark.parametrize(("goes_back", "sentence"), [(True, "now rolls it back"), (False, "was monitored then")])
def test_the_owner_of_a_breach_reads_what_comes_next(goes_back: bool, sentence: str) -> None:
    facts = {"to_owner": True, **({"goes_back": True} if goes_back else {})}
    _, body = render(notice(NoticeKind.BREACH, audience="tpm", owner="tpm", stage="monitored", facts=facts))
    assert sentence in body
    assert "is monitored" not in body, "it rolls back in the same second"
    assert "what holds the rollout" not in body, "nothing does"


LINKED: list[tuple[NoticeKind, dict[str, Any], str]] = [
    (NoticeKind.PLANNED, {}, "teams/team-a?cluster=h100-a"),
    (NoticeKind.BREACH, {"audience": "tpm", "owner": "tpm"}, "clusters/h100-a"),
    (NoticeKind.HELD, {}, "clusters/h100-a"),
    (NoticeKind.REQUEST, {"key": "request/q-1/000003/told"}, "requests/q-1"),
    (NoticeKind.FLEET_HELD, {"cluster": "_fleet"}, "rollout"),
    (NoticeKind.EMERGENCY, {}, "access"),
    (
        NoticeKind.PLANNED,
        {"cluster": "h100/a?b", "audience": "re search&x=1"},
        "teams/re%20search%26x%3D1?cluster=h100%2Fa%3Fb",
    ),
]


@pytest.mark.parametrize(("kind", "values", "path"), LINKED)
@pytest.mark.parametrize("console", ["https://backstop.example", "https://backstop.example/"])
def test_a_notice_leads_to_the_page_where_its_reader_answers(
    kind: NoticeKind, values: dict[str, Any], path: str, console: str
) -> None:
    told = notice(kind, **{**FULLEST, **values})
    _, body = render(told, console=console)
    assert f"\n\nIn the browser: https://backstop.example/{path}\n" in body
    assert "browser" not in render(told)[1], "where nobody said where the console is"
    assert re.split("[/?]", path)[0] in PAGES


def test_what_has_no_page_leads_nowhere() -> None:
    assert "browser" not in render(notice(NoticeKind.BRINGUP, **FULLEST), console="https://backstop.example")[1]


@pytest.mark.parametrize(
    ("public", "front", "leads_to"),
    [
        ("https://backstop.example", "https://front.example", "https://backstop.example"),
        ("", "https://front.example", "https://front.example"),
        ("", "", ""),
    ],
)
def test_notices_lead_to_the_console_where_a_worker_is_told_of_it(
    public: str, front: str, leads_to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path))
    monkeypatch.setenv("BACKSTOP_PUBLIC_URL", public)
    monkeypatch.setenv("BACKSTOP_URL", front)
    assert load_settings().console_url == leads_to
    monkeypatch.setenv("BACKSTOP_PUBLIC_URL", "backstop.example")
    with pytest.raises(BadInput, match="BACKSTOP_PUBLIC_URL must begin with https:// or http://"):
        load_settings()
