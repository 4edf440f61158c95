"""The weekly report in words: its sentences and tables, and all of it as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from models.cluster.windows import Entry, WindowKind, span_text, windows_alike
from models.fleet.state import FLEET
from models.reports.bringups import BringupsWeek
from models.reports.tallies import Point
from models.reports.weekly import AtRisk, BeforeAndAfter, Week, worst_first
from models.rollout.stages import Stage
from models.texts import verb_of
from views.milestones import RULE, note_text, words
from views.words import clean, count, number, space_name

MOST = 8
"""The most lines of a list; --json has all."""
OTHERS = "The clusters with known health changed in between: compare only lines that count the same clusters."
_LINES = 9
"""The most lines of the curve in Markdown."""


class Section(NamedTuple):
    """A part of the report. `note`: below the rows, or in their place if there are none."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    numbers_from: int = 99
    """The index of the first column with numbers; all later columns have numbers too."""


def title(week: Week) -> str:
    last = week.until - timedelta(microseconds=1)  # a week that ends with a day ends as the next one begins
    return f"Weekly status, {week.since:%d %B} to {last:%d %B %Y}"


def lead(week: Week) -> str:
    """Return the report in a few sentences."""
    parts = [f"{week.monitored} of {count(week.clusters, 'cluster')} monitored{_change(week)}."]
    if week.now is not None and week.now.known:
        less = "" if week.week_ago is None or not week.week_ago.known else _than(week)
        parts.append(
            f"{number(week.now.phantom_gpus)} of {number(week.now.promised_gpus)} promised GPUs "
            f"{'was' if week.now.phantom_gpus == 1 else 'were'} phantom on {_moment(week.now.at)}{less}."
        )
    parts.append(cut_sentence(week))
    totals = week.totals
    if totals.lacking_before is not None and totals.lacking_after is not None:
        parts.append(
            f"In {count(totals.asking, 'cluster')} with figures from before and after the rollout, the GPUs that jobs "
            f"inside a quota waited for went from {_mean(totals.lacking_before)} to {_mean(totals.lacking_after)}."
        )
    if week.live is not None:
        parts.append(_blocked_text({block.cluster for block in week.live.blocked}))
        shadows = len(week.live.shadows)
        if shadows:
            rehearse = (
                "rehearses: it changes nothing and is" if shadows == 1 else "rehearse: they change nothing and are"
            )
            parts.append(f"{count(shadows, 'shadow rollout')} {rehearse} in none of these figures.")
    return " ".join(parts)


def _blocked_text(held: AbstractSet[str]) -> str:
    """Count blocked clusters; the fleet rollout is not one of them."""
    clusters = len(held - {FLEET})
    named = [count(clusters, "cluster")] * bool(clusters) + ["the fleet rollout"] * (FLEET in held)
    text = " and ".join(named) or "nothing"
    return f"{text[:1].upper()}{text[1:]} {'is' if len(held) <= 1 else 'are'} blocked."


def emergencies(week: Week, *, typed: bool = True) -> list[str]:
    """Return what somebody did alone and no other admin has reviewed; it opens the report.

    `typed`: with the command that reviews it, for readers who have a terminal.
    """
    return [
        f"{clean(one.sentence)}. No other admin has reviewed it"
        + (f": backstop access seen {one.number} --reason ..." if typed else ".")
        for one in week.emergencies
    ]


def cut_sentence(week: Week) -> str:
    """Say what rollouts took from quotas this week, and what became of it."""
    cut, back, lost = week.cut.cut_gpus, week.cut.back_gpus, week.cut.withdrawn_gpus
    given_back = "" if not back else f" {count(back, 'GPU')} {'was' if back == 1 else 'were'} given back."
    if lost:
        given_back = (
            f" Breaches withdrew {count(lost, 'more GPU' if cut else 'GPU')}, whose hardware had failed.{given_back}"
        )
    if not cut:
        return f"No GPU was cut by a plan this week.{given_back}" if lost else f"No GPU was cut this week.{given_back}"
    clusters = count(week.cut.clusters, "cluster")
    were = "was" if cut == 1 else "were"
    parts = f"{number(week.cut.phantom_gpus)} phantom removed, {number(week.cut.to_flex_gpus)} moved to flex"
    return f"{count(cut, 'GPU')} {were} cut from quotas in {clusters} this week: {parts}.{given_back}"


def every_cluster(week: Week) -> Section:
    """Return a line for each cluster, for readers who look for one."""
    rows = []
    for each in week.every:
        cut, outcome = each.cut, each.outcome
        taken = (0,) * 4
        if cut is not None:
            taken = (cut.cut_gpus, cut.phantom_gpus, cut.to_flex_gpus, cut.withdrawn_gpus)
        phantom = (
            ("-", "-")
            if outcome is None
            else (_of(outcome, "before", "phantom_gpus"), _of(outcome, "after", "phantom_gpus"))
        )
        rows.append((clean(each.cluster), space_name(each.stands) or "-", *map(number, taken), *phantom))
    columns = (
        *("Cluster", "Stands", "Cut", "Phantom removed", "Moved to flex", "Withdrawn by breaches"),
        *("Phantom before", "Phantom after"),
    )
    return Section(f"All {count(len(rows), 'cluster')}", columns, rows, numbers_from=2)


def _change(week: Week) -> str:
    more = week.monitored - week.monitored_before
    return f", {abs(more)} {'more' if more > 0 else 'fewer'} than a week ago" if more else ", as many as a week ago"


def _than(week: Week) -> str:
    if week.now is None or week.week_ago is None:
        return ""
    less, then = week.week_ago.phantom_gpus - week.now.phantom_gpus, _moment(week.week_ago.at)
    if not week.now.is_of_same(week.week_ago):
        were = verb_of(week.week_ago.phantom_gpus, "was", "were")
        return f"; {number(week.week_ago.phantom_gpus)} {were} on {then}, {_of_others(week.now, week.week_ago)}"
    return (
        f", {number(abs(less))} {'fewer' if less > 0 else 'more'} than on {then}" if less else f", as many as on {then}"
    )


def _of_others(now: Point, then: Point) -> str:
    """Say why the difference of the two numbers means nothing."""
    return (
        f"of {count(then.known, 'cluster')} then and {now.known:,} now"
        if then.known != now.known
        else "of other clusters"
    )


class Number(NamedTuple):
    value: str
    text: str


def numbers(week: Week) -> list[Number]:
    """Return the week in numbers."""
    now, ago = week.now, week.week_ago
    has_figures = now is not None and now.known > 0
    was = ago is not None and ago.known > 0
    done = sum(standing.state == "done" for standing in week.milestones)
    cut = week.cut
    return [
        Number(
            f"{week.monitored}", f"of {count(week.clusters, 'cluster')} monitored; {week.monitored_before} a week ago"
        ),
        Number(
            number(cut.cut_gpus),
            f"{_gpus(cut.cut_gpus)} cut this week: {number(cut.phantom_gpus)} phantom removed, "
            f"{number(cut.to_flex_gpus)} moved to flex",
        ),
        Number(
            number(now.phantom_gpus) if now is not None and has_figures else "unknown",
            f"phantom {_gpus(now.phantom_gpus if now is not None else None)}"
            + _of_when(now, ago.phantom_gpus if ago is not None and was else None, ago),
        ),
        Number(
            number(now.lacking_gpus) if now is not None and now.lacking_gpus is not None else "unknown",
            f"{_gpus(None if now is None else now.lacking_gpus)} that jobs inside a quota wait for"
            + _of_when(now, None if ago is None else ago.lacking_gpus, ago)
            + (
                ""
                if now is None or now.asking == now.clusters
                else f" (known for {now.asking} of {count(now.clusters, 'cluster')})"
            ),
        ),
        Number(f"{done} of {len(week.milestones)}", f"milestone{'' if len(week.milestones) == 1 else 's'} done")
        if week.milestones
        else Number("0", "milestones set"),
    ]


def _gpus(number: int | None) -> str:
    return "GPU" if number == 1 else "GPUs"


def _of_when(now: Point | None, before: int | None, ago: Point | None) -> str:
    """Say when figures from tallies were read, and what they were before."""
    read = "" if now is None else f", read {_moment(now.at)}"
    others = "" if now is None or ago is None or now.is_of_same(ago) else f" ({_of_others(now, ago)})"
    return read + ("" if before is None or ago is None else f"; {number(before)} on {_moment(ago.at)}{others}")


def sections(week: Week) -> list[Section]:
    """Return all tables in their order."""
    return [
        *_undos(week),
        _report_reached(week),
        *_live(week),
        *_bringups(week.bringups),
        _milestones(week),
        _outcome(week),
    ]


def _bringups(brought: BringupsWeek | None) -> list[Section]:
    """Return new clusters: who waits for whom, and how long each state takes. Nothing if there never was one."""
    if brought is None:
        return []
    going = [
        (
            clean(bringup.cluster),
            bringup.stage.words,
            _day(bringup.since),
            clean(bringup.needs or bringup.waits_for) or "-",
            clean(bringup.owner),
            number(bringup.touches),
        )
        for bringup in brought.going
    ]
    columns = ("Cluster", "State", "Since", "Waits for", "Owner", "Touches")
    reached = [
        f"{clean(arrival.cluster)} is {arrival.stage.words}, {_long(arrival.took)} after it was entered"
        for arrival in brought.reached
    ]
    news = f"This week: {'; '.join(reached[:MOST])}{_more(len(reached), MOST)}." if reached else ""
    lines = _cut("New clusters", columns, going, "No cluster is being brought up.", "backstop bringup status")
    times = [
        (t.stage.words, number(t.bringups), _long(t.median), _long(t.slowest), clean(t.slowest_of))
        for t in brought.times
    ] + [
        (f"waiting for a {w.whom}", number(w.bringups), _long(w.median), _long(w.slowest), clean(w.slowest_of))
        for w in brought.waits
    ]
    took = Section(
        "How long new clusters take",
        ("State", "Clusters", "Median", "Slowest", "Which"),
        times,
        _touches(brought),
        numbers_from=1,
    )
    return [lines._replace(note=f"{news} {lines.note}".strip()), *([took] if times else [])]


def _touches(brought: BringupsWeek) -> str:
    if brought.touches_median is None:
        return "No new cluster has reached production yet."
    return (
        f"{count(brought.finished, 'cluster')} reached production. Actions by people for each, besides entry and "
        f"check-in: {_mean(brought.touches_median)} in the median, {number(brought.touches_most)} at most."
    )


def _long(time: timedelta) -> str:
    """Return seconds as 3.2d, 5h or 12m: nobody needs a month to the second."""
    units = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1)))
    name, unit = next((each for each in units if time >= 2 * each[1]), units[-1])
    return f"{time / unit:.1f}".removesuffix(".0") + name


def _undos(week: Week) -> list[Section]:
    """Return the rollouts that were undone, if any. The report has them before those that were done."""
    rows = [
        (clean(m.cluster), clean(m.actor), f"{m.at:%a %d %b}", clean(m.text.partition(": ")[2])) for m in week.undone
    ]
    columns = ("Cluster", "By", "On", "Why")
    return [_cut("Rolled back", columns, rows, "", in_all=week.rows.undone)] if rows else []


def _report_reached(week: Week) -> Section:
    """Return what reached monitored, and what has left it since."""
    rows: list[tuple[str, ...]] = []
    stands = {one.cluster: one.stands for one in week.every}
    for arrival in reversed(week.done):
        since = stands.get(arrival.cluster, Stage.MONITORED)
        why = "" if since == Stage.MONITORED else f"{space_name(since)} since"
        rows.append((clean(arrival.cluster), "monitored", f"{arrival.at:%a %d %b}", why))
    columns = ("Cluster", "Reached", "On", "Why")
    return _cut("Done", columns, rows, "Nothing reached monitored this week.", in_all=week.rows.done)


def _live(week: Week) -> list[Section]:
    live = week.live
    if live is None:
        return [Section("Next, at risk, blocked", (), [], "This week is over: what was open then is no longer known.")]
    unknown = len(live.silent)
    silent = f" The state of {count(unknown, 'rollout')} is not recorded yet." if unknown else ""
    goes = [
        (
            clean(n.cluster),
            n.stage,
            "when it can" if n.at is None else f"{n.at:%Y-%m-%d %H:%MZ}",
            clean(n.waits_for) or "-",
        )
        for n in live.next
    ]
    risks = [
        (
            clean(risk.cluster),
            _stage_text(risk),
            number(risk.lacking_gpus),
            clean(", ".join(risk.teams[:4])) + _more(risk.team_count, 4),
        )
        for risk in live.at_risk
    ]
    windows = [(clean(where), clean(what), clean(why)) for where, what, why in _windows(live.windows)]
    blocked = [
        (clean(block.cluster), clean(space_name(block.kind)), clean(block.by), _day(block.since), clean(block.reason))
        for block in live.blocked
    ]
    return [
        _cut(
            "Blocked, and by whom",
            ("Cluster", "What", "By", "Since", "Why"),
            blocked,
            f"Nothing waits for a person.{silent}",
            "backstop status",
        ),
        _cut(
            "Next",
            ("Cluster", "Stage", "Gate opens", "Waits for"),
            goes,
            "No rollout goes on by itself.",
            "backstop status",
        ),
        _cut(
            "At risk: quotas that lack hardware",
            ("Cluster", "Stage", "GPUs lacking", "Teams"),
            risks,
            f"Every quota of an open rollout{' whose state is recorded' if live.silent else ''} has healthy hardware.",
            "backstop status --at-risk",
        ),
        _cut(
            "At risk: declared windows, today and in the two weeks ahead",
            ("Clusters", "Window", "Why"),
            windows,
            "No window is declared.",
            "backstop calendar show",
        ),
    ]


def _windows(entries: Sequence[Entry]) -> list[tuple[str, str, str]]:
    """Return a line for each window, one for a window of several clusters. Freezes, which take no GPU, come last."""
    lines = []
    for window, theirs in sorted(windows_alike(entries).items(), key=lambda pair: pair[0].kind is WindowKind.FREEZE):
        if len(theirs) == 1:
            lines.append((theirs[0].cluster, span_text(theirs[0].window), window.reason))
            continue
        gpus = [entry.window.gpus for entry in theirs]
        counts = [count for count in gpus if count is not None]
        whole = window.model_copy(update={"gpus": sum(counts) if len(counts) == len(gpus) else None})
        clusters = {entry.cluster for entry in theirs}
        where = clusters.pop() if len(clusters) == 1 else count(len(clusters), "cluster")
        lines.append((where, span_text(whole), window.reason))
    return lines


def _stage_text(risk: AtRisk) -> str:
    return f"{risk.stage} (advisory, no promise)" if risk.advisory else risk.stage


def _milestones(week: Week) -> Section:
    rows = [
        (
            clean(standing.milestone.name),
            clean(words(standing.milestone.measure)),
            f"{standing.milestone.due:%d %b}",
            "unknown"
            if standing.number is None
            else number(standing.number) + (f" ({_moment(standing.number_at)})" if standing.number_at else ""),
            "-" if standing.expected is None else number(standing.expected),
            number(standing.milestone.target),
            standing.state.value,
            clean(note_text(standing)),
        )
        for standing in week.milestones
    ]
    columns = ("Milestone", "Measure", "Due", "Number", "Expected", "Target", "Stands", "Last noted")
    return Section(
        "Milestones", columns, rows, RULE if rows else "No milestone is set: `backstop milestones set FILE`."
    )


def _outcome(week: Week) -> Section:
    rows = [
        (
            clean(o.cluster),
            _of(o, "before", "lacking_gpus"),
            _of(o, "after", "lacking_gpus"),
            _of(o, "before", "phantom_gpus"),
            _of(o, "after", "phantom_gpus"),
            "-" if o.monitored_at is None else f"{o.monitored_at:%d %b}",
        )
        for o in worst_first(week.outcomes)[:MOST]
    ]
    columns = ("Cluster", "Waited before", "Waits after", "Phantom before", "Phantom after", "Monitored")
    section = _cut(
        "Did it help? By cluster", columns, rows, "No rollout has written a quota yet.", in_all=week.rows.outcomes
    )
    if not rows:
        return section
    note = (
        "Means of hourly tallies. Waited, waits: GPUs that jobs inside their quota ask for and no healthy GPU can "
        "serve. Before: the 7 days before the first write; after: since monitored. Unknown: no tally then, or demand "
        "is not reported."
    )
    return section._replace(note=f"{section.note} {note}".strip(), numbers_from=1)


def _of(values: BeforeAndAfter, when: str, what: str) -> str:
    mean = getattr(values, when)
    if mean is None:
        return "not yet" if when == "after" and values.monitored_at is None else "unknown"
    value = getattr(mean, what)
    return "unknown" if value is None else _mean(value)


def _cut(
    name: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    empty: str,
    all_: str = "--json",
    in_all: int | None = None,
) -> Section:
    """Return the first rows. `in_all`: the number of rows in all, where it is not the number of these."""
    if not rows:
        return Section(name, columns, [], empty)
    more = (len(rows) if in_all is None else in_all) - MOST
    return Section(name, columns, rows[:MOST], f"And {more} more: `{all_}`." if more > 0 else "")


def _more(names: int, shown: int) -> str:
    return f" and {names - shown} more" if names > shown else ""


def _day(at: object) -> str:
    return "-" if at is None else f"{at:%a %d %b}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%MZ}"


def _mean(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


# --- Markdown --------------------------------------------------------------------------------------------


def markdown(week: Week) -> str:
    """Return the whole report. People's texts can neither break a table nor become markup."""
    alone = "\n".join(f"- **Emergency**: {_plain(text)}" for text in emergencies(week))
    figures = "\n".join(f"- **{n.value}** {n.text}" for n in numbers(week))
    parts = [f"# {title(week)}", *([alone] if alone else []), lead(week), figures]
    for section in sections(week):
        parts.append(f"## {section.title}")
        if section.rows:
            parts.append(_table(section))
        if section.note:
            parts.append(section.note)
    if week.points:
        parts += ["## Phantom GPUs over time", _curve(week)]
    elif week.began is None:
        parts.append("There is no tally yet: the watch writes the first soon after a cluster's import.")
    return "\n\n".join(parts) + "\n"


def _table(section: Section) -> str:
    rule = ["---:" if n >= section.numbers_from else "---" for n in range(len(section.columns))]
    rows = [section.columns, tuple(rule), *(tuple(_plain(cell) for cell in row) for row in section.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _plain(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\|`*_<>[]#" else c for c in text)


def _curve(week: Week) -> str:
    """Return a line for each week's end, the latest last; a young fleet gets as many lines, closer together."""
    stride = max(1, -(-len(week.points) // _LINES))
    shown = list(reversed(list(reversed(week.points))[::stride]))
    rows = [
        (_moment(p.at), number(p.known), number(p.promised_gpus), number(p.healthy_gpus), number(p.phantom_gpus))
        for p in shown
        if p.known
    ]
    table = _table(Section("", ("Read", "Clusters", "Promised", "Healthy", "Phantom"), rows, numbers_from=1))
    measured = [p for p in week.points if p.known]
    return table if all(earlier.is_of_same(later) for earlier, later in pairwise(measured)) else f"{table}\n\n{OTHERS}"
