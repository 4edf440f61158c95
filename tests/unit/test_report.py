"""The weekly report: its sums, its words, its page; and the curve that it is drawn from."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from cli.commands.burndown import points_between
from cli.main import run
from cli.output import _plain
from cli.pages.report import page
from models.access.second_persons import Emergency
from models.cluster.windows import Entry, Window, WindowKind
from models.lifecycle.holds import Hold, HoldKind
from models.reports.milestones import Milestones
from models.reports.weekly import (
    BeforeAndAfter,
    ClusterCut,
    Move,
    Passage,
    list_monitored,
    shorten,
    spans,
    steps_of,
    totals,
    waves_done,
    week,
)
from models.rollout.stages import Stage
from models.rollout.status_models import RolloutNote
from models.status_questions import Overview
from tests.unit.cli_fakes import NOON, FakeBackstop, answering
from tests.unit.weeks import DAY, UNTIL, a_live, a_past, a_week, mean, point
from views.burndown import burndown_parts
from views.report import lead, markdown, numbers, sections, title
from web.console.pages.gpu_curves import burn_down_of

HOUR = timedelta(hours=1)


def move(cluster: str, hours: float, after: str, rollout: str = "") -> Move:
    return Move(
        cluster=cluster,
        rollout=rollout or f"{cluster}/1",
        at=UNTIL + hours * HOUR,
        before="x",
        after=after,
        actor="backstop",
        text="x",
    )


def passage(*moves: Move, wrote: float | None = None) -> Passage:
    at = None if wrote is None else UNTIL + wrote * HOUR
    return Passage(cluster=moves[0].cluster, rollout=moves[0].rollout, wrote_at=at, moves=moves)


A = passage(move("a", -50, "buffered"), move("a", -40, "monitored"), wrote=-51)
B = passage(
    move("b", -90, "buffered"),
    move("b", -80, "monitored"),
    move("b", -60, "rolling_back"),
    move("b", -59, "rolled_back"),
    move("b", -20, "monitored"),
    move("b", -10, "closed"),
    wrote=-91,
)
B2 = passage(move("b", -5, "buffered", "b/2"), wrote=-6)
C = passage(move("c", -3, "aborted"))


def test_who_was_monitored_when() -> None:
    way = [A, B, B2, C]
    found = {h: list_monitored(way, UNTIL + h * HOUR) for h in (-100, -70, -50, -30, -20, -1)}
    assert found == {-100: (), -70: ("b",), -50: (), -30: ("a",), -20: ("a", "b"), -1: ("a",)}
    steps = [((s.at - UNTIL) / HOUR, s.clusters) for s in steps_of(way, UNTIL)]
    assert steps == [(-90, 0), (-80, 1), (-60, 0), (-40, 1), (-20, 2), (-10, 1)]


def test_before_is_before_the_first_write_and_after_is_while_monitored() -> None:
    found = {first.cluster: (before, after) for first, _, before, after in spans([A, B, B2, C], UNTIL)}
    assert set(found) == {"a", "b"}
    before, after = found["b"]
    assert (before.since, before.until) == (UNTIL - 91 * HOUR - 7 * DAY, UNTIL - 91 * HOUR)
    assert after is not None
    assert (after.since, after.until, after.monitored) == (UNTIL - 20 * HOUR, UNTIL - 10 * HOUR, True)
    assert found["a"][1] is not None
    assert found["a"][1].until is None
    early = {first.cluster: after for first, _, _, after in spans([A, B], UNTIL - 45 * HOUR)}
    assert early["a"] is None
    assert early["b"] is not None
    assert early["b"].until == UNTIL - 60 * HOUR


def test_the_totals_are_of_clusters_that_have_both() -> None:
    def outcome(before: float | None, after: float | None, ended: bool = True) -> BeforeAndAfter:
        return BeforeAndAfter(
            cluster="c",
            wrote_at=UNTIL,
            monitored_at=UNTIL if ended else None,
            before=mean(before, 10.0),
            after=mean(after, 2.0) if ended else None,
        )

    found = totals([outcome(20.0, 1.0), outcome(5.0, None), outcome(None, None), outcome(100.0, 0.0, ended=False)])
    assert (found.clusters, found.asking, found.lacking_before, found.lacking_after) == (3, 1, 20.0, 1.0)
    assert (found.phantom_before, found.phantom_after) == (30.0, 6.0)
    assert totals([outcome(5.0, None)]).lacking_before is None


def test_a_wave_is_rolled_out_when_its_last_cluster_is() -> None:
    waves = {"a": "unallocated", "b": "unallocated", "c": "busy", "d": "after all"}
    assert [waves_done(waves, there) for there in (["a"], ["a", "b"], ["a", "b", "c"], [])] == [0, 1, 2, 0]


def test_a_cluster_that_came_back_and_was_closed_is_done_and_says_so() -> None:
    past, name = a_past(3), "h100-pod-001"
    moves = [("rolled_back", -60), ("monitored", -40), ("closed", -20)]
    made = week(past.but(moves=tuple(move(name, hours, after) for after, hours in moves), monitored=()), None)
    assert [m.after for m in (*made.undone, *made.done)] == ["rolled_back", "monitored"]
    (row,) = (line for line in markdown(made).splitlines() if "| monitored |" in line and name in line)
    assert row.endswith("closed since |")


def test_a_cluster_that_was_done_and_undone_is_not_done() -> None:
    past = a_past(3)
    reached = next(m.cluster for m in past.moves if m.after == "monitored")
    again = move(reached, -1, "rolled_back")
    left = tuple(n for n in past.monitored if n != again.cluster)
    made = week(past.model_copy(update={"moves": (*past.moves, again), "monitored": left}), None)
    assert again.cluster not in [m.cluster for m in made.done]
    assert again.cluster in [m.cluster for m in made.undone]


@pytest.mark.parametrize("seed", range(6))
def test_a_short_week_says_what_the_whole_week_says(seed: int) -> None:
    """Its lists are short, and its counts and sums are of all rows. The whole week is checked against SQL elsewhere."""
    chance, past = Random(seed), a_past(120)
    after = ("buffered", "monitored", "monitored", "monitored", "rolling_back", "rolled_back", "closed")
    moves = [move(chance.choice(past.names), -chance.uniform(0, 160), chance.choice(after)) for _ in range(200 * seed)]
    names = ("cut_gpus", "phantom_gpus", "to_flex_gpus", "back_gpus", "withdrawn_gpus")
    cuts = tuple(
        ClusterCut.model_validate({"cluster": cluster, **{name: chance.randrange(9) for name in names}})
        for cluster in past.names[::3]
    )
    past = past.but(moves=tuple(sorted(moves, key=lambda one: one.at)), cuts=cuts)
    short = shorten(past, 8)
    whole, page_of_it = (week(each, a_live(120)) for each in (past, short))
    read = [(title(each), lead(each), numbers(each), sections(each)) for each in (whole, page_of_it)]
    assert read[0] == read[1]
    assert len(short.outcomes) == 8 < len(past.outcomes)
    assert len({one.cluster for one in short.moves}) <= 16
    assert not short.cuts
    assert whole.cut.cut_gpus == sum(cut.cut_gpus for cut in cuts)
    assert whole.rows.undone == sum(one.after == "rolled_back" for one in moves)


def section(text: str, title: str) -> str:
    """Return the text under a title of a report; empty: there is no such title."""
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_what_was_rolled_back_stands_apart_from_what_is_done() -> None:
    name, text = "h100-pod-002", markdown(a_week(3))
    assert section(text, "Rolled back").strip().splitlines()[2:] == [
        f"| {name} | guard | Wed 25 Nov | 12 GPUs of research lacked hardware |"
    ]
    assert name not in section(text, "Done")
    assert "monitored" in section(text, "Done")
    calm = week(a_past(3).but(moves=()), None)
    assert "Rolled back" not in markdown(calm)


def test_what_a_breach_withdrew_is_told_apart_from_what_a_plan_cut() -> None:
    """A leader must not read failed hardware as phantom GPUs that the rollout removed."""
    past = a_past(3)
    one = past.cuts[0].but(withdrawn_gpus=6)
    both, alone = (week(past.but(cuts=(cut,)), None) for cut in (one, one.but(cut_gpus=0, phantom_gpus=0)))
    assert (
        "26 phantom removed, 13 moved to flex. Breaches withdrew 6 more GPUs, whose hardware had failed. "
        "4 GPUs were given back."
    ) in markdown(both)
    assert "No GPU was cut by a plan this week. Breaches withdrew 6 GPUs, whose hardware had failed." in markdown(alone)


def test_a_freeze_of_the_fleet_is_one_line_and_hides_no_window_that_takes_gpus() -> None:
    freeze = Window(kind=WindowKind.FREEZE, starts=UNTIL - HOUR, ends=UNTIL + 40 * DAY, reason="year's end")
    takes = Window(kind=WindowKind.MAINTENANCE, starts=UNTIL + 2 * HOUR, ends=UNTIL + DAY, reason="power", gpus=993)
    entries = [(f"c-{n:02d}", freeze) for n in range(46)] + [
        ("c-50", takes),
        ("c-07", takes.model_copy(update={"gpus": 7})),
    ]
    windows = tuple(
        Entry(id=n, cluster=cluster, window=window, source="", declared_by="")
        for n, (cluster, window) in enumerate(entries, 1)
    )
    made = a_week(3)
    assert made.live is not None
    text = section(
        markdown(made.but(live=made.live.but(windows=windows))),
        "At risk: declared windows, today and in the two weeks ahead",
    )
    assert text.strip().splitlines()[2:] == [
        "| 2 clusters | maintenance of 1,000 GPUs from 2026-11-27 18:00Z until 2026-11-28 16:00Z | power |",
        "| 46 clusters | freeze from 2026-11-27 15:00Z until 2027-01-06 16:00Z | year's end |",
    ]


def test_no_slope_leads_from_some_clusters_to_others() -> None:
    """Ten days of clusters a and b, then b has gone and c has come: as many, and others."""
    past = a_past(3)
    points = tuple(p.but(of="ab" if n < 21 else "ac") for n, p in enumerate(past.points))
    assert past.week_ago is not None
    other = week(past.but(points=points, week_ago=past.week_ago.but(of="ab")), None)
    same = week(past.but(week_ago=past.week_ago), None)
    assert "21 fewer than on 2026-11-20 16:00Z" in markdown(same)
    assert "21 fewer" not in markdown(other)
    assert "; 51 were on 2026-11-20 16:00Z, of other clusters." in markdown(other)
    assert "compare only lines that count the same clusters" in markdown(other)
    drawn = {
        name: page(each).count("Phantom GPUs went from 120 on") for name, each in {"same": same, "other": other}.items()
    }
    assert drawn == {"same": 2, "other": 0}, "in the words and for who cannot see the picture"
    assert "Where the line breaks" in page(other)
    gaps = [curve["data"] for curve in (burn_down_of(points), burn_down_of(past.points)) if curve is not None]
    assert [data[1].count(None) for data in gaps] == [1, 0]
    assert len(gaps[0][0]) == len(gaps[0][1]) == len(points) + 1


def test_the_page_does_not_say_that_a_watched_rollout_is_over() -> None:
    """`doctor` counts a monitored one as open: it ends when somebody closes it."""
    assert "rollout is over" not in page(a_week(3))


def test_old_tallies_say_nothing_of_now() -> None:
    past = a_past(3)
    old = past.model_copy(update={"points": (point(UNTIL - 2 * DAY, 3, 9),)})
    made = week(old, None)
    assert made.now is None
    assert "**unknown** phantom GPUs" in markdown(made)
    little = {s.milestone.name: s.state.value for s in made.milestones}
    assert little["little phantom"] == "unknown"


# --- in words, and as a page -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocked", "sentence"),
    [
        ([], "Nothing is blocked."),
        (["(fleet)"], "The fleet rollout is blocked."),
        (["c", "c", "(fleet)"], "1 cluster and the fleet rollout are blocked."),
        (["b", "c"], "2 clusters are blocked."),
    ],
)
def test_the_fleet_rollout_is_not_counted_among_blocked_clusters(blocked: list[str], sentence: str) -> None:
    week = a_week(20)
    assert week.live is not None
    one = week.live.blocked[0]
    live = week.live.but(blocked=tuple(one.but(cluster=name) for name in blocked))
    assert markdown(week.but(live=live)).splitlines()[2].endswith(sentence)


def test_a_blocked_rollout_is_no_rollout_that_goes_on_by_itself_and_yet_under_way() -> None:
    week = a_week(20)
    assert week.live is not None
    assert week.live.blocked
    text = markdown(week.but(live=week.live.but(next=())))
    assert "No rollout goes on by itself." in text
    assert "under way" not in text


def test_the_report_says_the_week_in_a_few_sentences() -> None:
    said = markdown(a_week(3)).splitlines()
    assert said[0] == "# Weekly status, 20 November to 27 November 2026"
    assert said[2] == (
        "2 of 3 clusters monitored, 1 more than a week ago. 30 of 1,050 promised GPUs were phantom on 2026-11-27 "
        "16:00Z, 21 fewer than on 2026-11-20 16:00Z. 39 GPUs were cut from quotas in 1 cluster this week: 26 phantom "
        "removed, 13 moved to flex. 4 GPUs were given back. In 1 cluster with figures from before and after "
        "the rollout, the GPUs that jobs inside a quota waited for went from 25 to 0.5. 1 cluster is blocked."
    )


def test_the_numbers_of_a_week_agree_with_their_nouns() -> None:
    past = a_past(3)
    now = point(UNTIL, 3, 1, 1).but(asking=2)
    one = past.but(points=(now,), week_ago=None, milestones=past.milestones.but(planned=past.milestones.planned[:1]))
    said = [f"{number.value} {number.text}" for number in numbers(week(one, None))]
    assert said[2:] == [
        "1 phantom GPU, read 2026-11-27 16:00Z",
        "1 GPU that jobs inside a quota wait for, read 2026-11-27 16:00Z (known for 2 of 3 clusters)",
        "1 of 1 milestone done",
    ]


def test_what_people_wrote_cannot_break_a_table_or_become_markup() -> None:
    made = a_week(30)
    told, shown = markdown(made), page(made)
    assert "a paper is due \\<soon\\>" in told
    assert "second \\| class" in told
    assert "<soon>" not in shown
    assert "a paper is due &lt;soon&gt;" in shown


def test_what_somebody_did_alone_stands_on_top_until_another_has_looked() -> None:
    alone = Emergency(number=3, by="user:sre", at=UNTIL - HOUR, what="promote in h100-a", reason="a *SEV* <b>now</b>")
    made = a_week(3).but(emergencies=(alone,))
    told, shown = markdown(made), page(made)
    first = told.split("\n\n")[1]
    assert first.startswith("- **Emergency**: user:sre acted alone in an emergency, ")
    assert "a \\*SEV\\* \\<b\\>now" in first
    assert "backstop access seen 3 --reason ..." in first
    assert shown.index("acted alone in an emergency") < shown.index('class="numbers"')
    assert "<b>now</b>" not in shown
    assert "mergency" not in markdown(a_week(3)) + page(a_week(3))


def test_long_lists_are_cut_and_say_where_the_rest_is() -> None:
    told = markdown(a_week(300))
    assert "And 42 more: `--json`." in told
    assert "And 23 more: `backstop status`." in told
    assert len(told.splitlines()) < 130
    assert len(page(a_week(300))) < 150_000


def widths(shown: str) -> dict[str, float]:
    """Return the drawn width of each named bar in the page. Units: points."""
    found = {}
    for name, path in re.findall(r'<g id="((?:scale|milestone|before|after)-\d+)">\s*<path d="([^"]*)"', shown):
        across = [float(x) for x, _ in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path)]
        found[name] = max(across) - min(across)
    return found


def test_bars_are_drawn_to_scale() -> None:
    """Before and after share one scale from 0; each milestone has its own, which its largest figure fills."""
    made = a_week(30)
    drawn = widths(page(made))
    both = [(o.before, o.after) for o in made.outcomes if o.before is not None and o.after is not None]
    waited = [(b.lacking_gpus, a.lacking_gpus) for b, a in both]
    ranked = sorted([(b, a) for b, a in waited if b is not None and a is not None], key=lambda row: -max(row))[:8]
    one = drawn["before-0"] / ranked[0][0]
    assert len(ranked) > 2
    for n, (before, after) in enumerate(ranked):
        assert drawn[f"before-{n}"] == pytest.approx(one * before, abs=0.1)
        assert drawn[f"after-{n}"] == pytest.approx(one * after, abs=0.1)
    shown = [s for s in made.milestones if s.number is not None and s.started_from is not None]
    assert {s.milestone.name for s in shown} >= {"pilot", "little phantom", "users trained"}
    for n, standing in enumerate(shown):
        most = max(standing.milestone.target, standing.number or 0, standing.expected or 0, standing.started_from or 0)
        assert drawn[f"milestone-{n}"] / drawn[f"scale-{n}"] == pytest.approx((standing.number or 0) / most, abs=0.002)


def test_the_page_has_every_cluster_folded_away() -> None:
    shown = page(a_week(300))
    folded = shown[shown.index("<details>") : shown.index("</details>")]
    assert "<summary>All 300 clusters</summary>" in folded
    assert [folded.count(f"h100-pod-{n:03d}<") for n in range(300)] == [1] * 300
    assert '<td>h100-pod-000</td><td>monitored</td><td class="n">39</td>' in folded


def test_on_paper_a_wide_table_has_the_whole_page() -> None:
    """On half a page of A4 each of its eight columns would be a letter wide."""
    shown = page(a_week(40))
    assert '<section class="wide">\n<h2>Milestones</h2>' in shown
    assert shown.count('<section class="wide">') == 1


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v and not v.startswith("#")]
        self.found += [tag] * (tag in ("script", "link", "iframe"))
        if tag in ("table", "figure", "h2", "ul"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("table", "figure", "h2", "ul"):
            assert self.open.pop() == tag


@pytest.mark.parametrize("clusters", [3, 300])
def test_the_page_needs_nothing_beside_it(clusters: int) -> None:
    shown = page(a_week(clusters))
    links = _Links()
    links.feed(shown)
    assert (links.found, links.open) == ([], [])
    assert shown.count("<svg") == 3


def test_a_report_of_nothing_says_so() -> None:
    empty = a_past(3).model_copy(
        update={
            "points": (),
            "moves": (),
            "outcomes": (),
            "week_ago": None,
            "began": None,
            "milestones": Milestones(),
            "monitored": (),
            "monitored_before": 0,
        }
    )
    made = week(empty, None)
    told, shown = markdown(made), page(made)
    for said in (
        "0 of 3 clusters monitored, as many as a week ago.",
        "Nothing reached monitored this week.",
        "This week is over",
        "No milestone is set",
        "No rollout has written a quota yet.",
        "There is no tally yet",
    ):
        assert said in told
    assert "<svg" not in shown


# --- commands ---------------------------------------------------------------------------------------------------


def held(stage: Stage, *holds: Hold, needs: str = "", shadow: bool = False, lacking: int = 0) -> Overview:
    teams = ("research",) * bool(lacking)
    note = RolloutNote(entered_at=NOON, lacking_gpus=lacking, lacking_teams=teams, lacking_team_count=len(teams))
    row = {"cluster": "h100-worked", "rollout": "h100-worked/1", "stage": stage, "health_at": None, "owner": "tpm"}
    return Overview.model_validate({**row, "needs": needs, "holds": holds, "note": note, "shadow": shadow})


def hold(kind: HoldKind, actor: str, team: str | None = None, until: datetime | None = None) -> Hold:
    return Hold(id="x", kind=kind, reason="because", actor=actor, at=NOON, team=team, until=until)


LIFT = 'held (objection by ana: because): backstop resolve h100-worked --hold x --reason "..."'
APPROVE = "approve the plan: backstop approve h100-worked --plan 0123"


@pytest.mark.parametrize(
    ("found", "blocked"),
    [
        (held(Stage.BUFFERED, hold(HoldKind.PAUSED, "oncall"), needs="paused"), [("paused", "oncall")]),
        (held(Stage.BUFFERED, hold(HoldKind.OBJECTION, "ana", "research"), needs=LIFT), [("objection", "research")]),
        # An incident that is over opens no gate of a plan that nobody has approved.
        (
            held(Stage.PLANNED, hold(HoldKind.SEV, "calendar"), needs=APPROVE),
            [("sev", "calendar"), ("decision", "tpm")],
        ),
        (held(Stage.PLANNED, needs="approve the plan"), [("decision", "tpm")]),
        (held(Stage.BUFFERED, hold(HoldKind.MAINTENANCE, "calendar")), [("maintenance", "calendar")]),
        (held(Stage.MONITORED, hold(HoldKind.MAINTENANCE, "calendar")), []),
        (held(Stage.BUFFERED), []),
    ],
)
def test_who_blocks_is_named(
    found: Overview, blocked: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(FakeBackstop(in_ledger=(found,))):
        assert run(["report", "--weekly", "--json"]) == 0
    live = json.loads(capsys.readouterr().out)["live"]
    assert [(b["kind"], b["by"]) for b in live["blocked"]] == blocked
    assert len(live["next"]) == (0 if blocked or found.stage == Stage.MONITORED else 1)


def test_a_planned_rollout_whose_quotas_lack_hardware_is_at_risk(capsys: pytest.CaptureFixture[str]) -> None:
    """It guards nothing yet, and so reports no risk; its quotas are advisory and lack hardware all the same."""
    sentence = "Every quota of an open rollout has healthy hardware."
    for gpus, row in ((6, "| h100-worked | planned (advisory, no promise) | 6 | research |"), (0, sentence)):
        with answering(FakeBackstop(in_ledger=(held(Stage.PLANNED, lacking=gpus),))):
            assert run(["report", "--weekly"]) == 0
        text = capsys.readouterr().out
        assert row in text
        assert (sentence in text) == (row == sentence)


def test_a_shadow_neither_blocks_nor_comes_next(capsys: pytest.CaptureFixture[str]) -> None:
    for needs in ("", "approve the plan"):
        with answering(FakeBackstop(in_ledger=(held(Stage.BUFFERED, needs=needs, shadow=True),))):
            assert run(["report", "--weekly", "--json"]) == 0
        live = json.loads(capsys.readouterr().out)["live"]
        assert (live["blocked"], live["next"], live["at_risk"]) == ([], [], [])


def test_rollouts_that_noted_nothing_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = held(Stage.BUFFERED).but(note=None)
    for rows, sentence in (
        ((quiet,), "The state of 1 rollout is not recorded yet."),
        ((quiet, quiet), "The state of 2 rollouts is not recorded yet."),
    ):
        with answering(FakeBackstop(in_ledger=rows)):
            assert run(["report", "--weekly"]) == 0
        assert f"Nothing waits for a person. {sentence}" in capsys.readouterr().out


def test_a_report_is_written_beside_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "weekly" / "status"
    with answering(FakeBackstop()) as door:
        assert run(["report", "--weekly", "--at", "2026-01-31", "--out", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["status-2026-02-01.html", "status-2026-02-01.md"]
    (asked,) = [a for a in door.asked if a[0] == "past"]
    assert asked[1:3] == (datetime(2026, 1, 25, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))
    assert "This week is over" in (out / "status-2026-02-01.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report", "--weekly is missing"),
        ("report --weekly --at soon", "--at must look like 2026-11-01 or 2026-11-01T12:00Z, not 'soon'"),
        ("report --weekly --at 2199-01-01", "--at 2199-01-01 is in the future: the time is "),
        ("report --weekly --at 0001-01-31", "--at 0001-01-31 gives a time outside the years 1 to 9999"),
        ("report --weekly --at 2026-01-01T12:00", "--at needs a time zone"),
        ("report --weekly --out /dev/null/x", "--out /dev/null/x: cannot be made: Not a directory"),
        ("burndown --since soon", "--since must look like 28d, 2026-11-01 or 2026-11-01T12:00Z, not 'soon'"),
        ("burndown --since 2199-01-01", "--since 2199-01-01 is not in the past"),
        ("burndown --since 0s", "--since 0s is not in the past"),
        ("burndown --since 99999d", "--since a duration cannot be longer than ten years"),
        ("burndown --cluster nope", "the ledger has no cluster 'nope'"),
        ("burndown --csv - --json", "--csv - and --json both write to standard output: give one of them"),
        ("burndown --csv /dev/null/x", "--csv /dev/null/x: cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()):
        assert run(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"backstop: {said}")
    assert error.count("\n") == 1


# --- the curve ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "step", "count"),
    [(28 * DAY, DAY, 29), (7 * DAY, 6 * HOUR, 29), (timedelta(seconds=5), timedelta(seconds=1), 6)],
)
def test_a_curve_fits_a_screen(length: timedelta, step: timedelta, count: int) -> None:
    times, found = points_between(UNTIL - length, UNTIL)
    assert (found, len(times), times[-1]) == (step, count, UNTIL)
    assert all(b - a == step for a, b in pairwise(times))


def test_the_longest_curve_still_fits_a_request() -> None:
    times, _ = points_between(UNTIL - 3660 * DAY, UNTIL)
    assert len(times) <= 500


def told(*points: object, began: datetime | None = UNTIL) -> str:
    return "\n".join(text for part in burndown_parts(points, "", began, UNTIL - DAY) for text in _plain(part))  # type: ignore[arg-type]


def test_the_curve_has_a_bar_for_each_time_and_says_what_is_unknown() -> None:
    unknown = point(UNTIL - HOUR, 3, 0).model_copy(update={"known": 0})
    some = point(UNTIL, 3, 16, 4).model_copy(update={"known": 2})
    said = told(point(UNTIL - 2 * HOUR, 3, 64), unknown, some)
    assert said.splitlines()[0].startswith(
        "On 2026-11-27 16:00:00Z 16 of 1,036 promised GPUs in the fleet had no healthy GPU behind them, 48 fewer "
        "than on 2026-11-27 14:00:00Z (3 clusters then, 2 now)."
    )
    bars = [text.rstrip().rsplit("  ", 1)[-1] for text in said.splitlines()[3:6]]
    assert bars == ["#" * 32, "unknown", "#" * 8]
    assert "2 of 3" in said
    assert "left out of the sums" in said


def test_a_rise_between_the_ends_is_told() -> None:
    points = (point(UNTIL - 3 * HOUR, 3, 4), point(UNTIL - 2 * HOUR, 3, 59), point(UNTIL, 3, 4))
    assert "as many as on 2026-11-27 13:00:00Z; in between there were up to 59." in told(*points)


def test_figures_say_when_they_were_read_and_what_health_they_go_by() -> None:
    early = point(UNTIL - 2 * HOUR, 3, 4)
    carried = point(UNTIL, 3, 4).model_copy(update={"oldest_at": UNTIL - 3 * HOUR, "health_at": UNTIL - 2 * DAY})
    said = told(early, carried)
    assert said.splitlines()[2].split()[:3] == ["READ", "AT", "OLDEST"]
    assert "11-27 13:00Z" in said
    assert "the oldest is from 2026-11-25 16:00:00Z" in said
    assert "OLDEST" not in told(early)


def test_the_curve_of_a_young_fleet_begins_with_its_first_tally() -> None:
    """Two hours of tallies in a window of four weeks: not one point for each of 28 days."""
    began = UNTIL - 2 * HOUR - timedelta(seconds=7)
    times, step = points_between(UNTIL - 28 * DAY, UNTIL, began)
    assert (times[0], times[-1], step) == (began, UNTIL, timedelta(minutes=5))
    assert points_between(UNTIL - DAY, UNTIL, UNTIL - 9 * DAY) == points_between(UNTIL - DAY, UNTIL)
    assert points_between(UNTIL - DAY, UNTIL - HOUR, UNTIL) == points_between(UNTIL - DAY, UNTIL - HOUR)


def test_no_curve_is_one_sentence() -> None:
    assert told(began=None).startswith("There is no tally yet: ")
    assert told(began=UNTIL - 9 * DAY).startswith("There is no tally since ")


def test_the_csv_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC)
    door = FakeBackstop(points=[point(now - 2 * HOUR, 3, 64), point(now - HOUR, 3, 16, 4)])
    with answering(door):
        assert run(["burndown", "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["phantom_gpus"], r["lacking_gpus"], r["promised_gpus"]) for r in rows] == [
        ("64", "", "1084"),
        ("16", "4", "1036"),
    ]
