"""A fleet rollout for people: its plan, and its state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.text import Text

from models.base import DAY, duration_text
from models.fleet.archived_state import KeptFleet
from models.fleet.messages import DeclaredOver, FleetLaunch, FleetPlan, FleetProgress, FleetStatus, Prospect
from models.fleet.state import WAVES, FleetStage, Member, MemberState, Pace, Wave
from models.planning.plan import is_stale
from models.texts import some_of, verb_of
from views.layout import FactSheet, Grid
from views.words import clean, count, gpus, line, lost_line, moment, row, span, table

_STYLES = {
    FleetStage.PLANNED: "cyan",
    FleetStage.RUNNING: "blue",
    FleetStage.ABORTING: "yellow",
    FleetStage.DONE: "green",
}
PACE_WORDS = {
    "parallel": "Clusters under way at once",
    "pilot_soak": "Time for which all pilots must be monitored before the first wave",
    "bake": "Time between two waves",
    "budget_per_hour": "Most GPUs that may move in an hour",
    "budget_per_day": "Most GPUs that may move in a day",
    "max_failed": "Largest share of clusters that may be rolled back before the fleet rollout stops",
    "breaker_clusters": "The share of rolled-back clusters divides by at least this many",
    "recheck": "Time until clusters that cannot start are tried again",
}
"""The labels of a fleet rollout's pace settings, where people change them."""
_GO_ON = "; its clusters' rollouts go on: backstop status --all"
_SHOWN = 8
"""The most lines of a list, unless a person asks for all."""


def plan_parts(
    plan: FleetPlan, pilots: Collection[str], pace: Pace, now: datetime | None = None
) -> list[RenderableType]:
    """Return the plan: its waves, the first clusters, those with old health, and those that cannot start.

    `now`: the time by which health is old; None: the clock's.
    """
    mine = [p for p in plan.clusters if not p.rollout]
    title = line((plan.size_text, "bold"), f", plan {plan.hash}")
    parts: list[RenderableType] = [title, Text(), _by_wave(mine, pilots), Text(), line(pace_text(pace))]
    able = [p for p in mine if not p.why_not]
    if able:
        names = ", ".join(clean(p.cluster) for p in able[:_SHOWN])
        parts.append(
            line(f"first to start, by today's snapshots: {names}{' ...' if len(mine) > len(able[:_SHOWN]) else ''}")
        )
    parts += _stale(mine, now or datetime.now(UTC))
    late = {p.cluster: p.why_last for p in mine if p.why_last and not p.why_not}
    unable = {p.cluster: p.why_not for p in mine if p.why_not}
    return [*parts, *_reasons_table("CANNOT START", unable), *_reasons_table("AFTER ALL WAVES", late)]


def _stale(prospects: Sequence[Prospect], now: datetime) -> list[RenderableType]:
    """Warn of clusters whose newest health is too old to open a gate, the oldest first."""
    old = [p for p in prospects if is_stale(p.health_at, p.stale_after, now)]
    ages = [(now - p.health_at, p.cluster) for p in old if p.health_at is not None]
    if not ages:
        return []
    named = some_of([f"{clean(c)} ({span(age)} old)" for age, c in sorted(ages, key=lambda a: (-a[0], a[1]))], _SHOWN)
    samples, shut = "samples", "Their gates stay shut until newer ones arrive"
    if len(ages) == 1:
        samples, shut = "sample", "Its gate stays shut until a newer one arrives"
    which = f"{samples} of {count(len(ages), 'cluster')} {'is' if len(ages) == 1 else 'are'} stale"
    return [line((f"The newest health {which}: {named}. {shut}.", "yellow"))]


_Cuts = Mapping[str, Mapping[str, int]]


def plan_diff_parts(
    before: FleetPlan, now: FleetPlan, at: datetime, cuts_before: _Cuts, cuts_now: _Cuts
) -> list[RenderableType]:
    """Return the differences between the kept plan and the present one. Cuts: by cluster and team."""
    were, are = ({p.cluster: p for p in plan.clusters} for plan in (before, now))
    rows = table("CLUSTER", "=WAVE", "=CUT", "=HEALTHY", "~TEAMS' CUTS", "~CANNOT START", least=("HEALTHY", "WAVE"))
    alike = 0
    for cluster in sorted({*were, *are}):
        was, is_ = were.get(cluster), are.get(cluster)
        if was is not None and is_ is not None and (was.wave, was.plan_hash) == (is_.wave, is_.plan_hash):
            alike += 1
            continue
        new, old = is_ or was, was or is_
        assert new is not None
        assert old is not None
        change = "comes in" if was is None else "is gone" if is_ is None else None
        why = change or new.why_not or None
        row(rows, cluster, _moves(wave_name(old.wave), wave_name(new.wave)), _moves(old.cut_gpus, new.cut_gpus),
            _moves(old.healthy_gpus, new.healthy_gpus), _teams(cuts_before.get(cluster), cuts_now.get(cluster)),
            why)  # fmt: skip
    cut = _moves(*(f"{sum(p.cut_gpus for p in plan.clusters):,}" for plan in (before, now)))
    other = len({*were, *are}) - alike
    head = f"Plan {before.hash} was written at {moment(at)}; {now.hash} awaits approval now"
    differ = f"{count(other, 'cluster')} {verb_of(other, 'differs', 'differ')}, {alike:,} {verb_of(alike)} alike"
    return [line(f"{head}: {differ}; GPUs cut: {cut}."), Text(), rows]


def _teams(before: Mapping[str, int] | None, now: Mapping[str, int] | None) -> str | None:
    """Say how many teams' cuts changed, and which changed most; None if one of the two plans' cuts is unknown."""
    if before is None or now is None:
        return None
    moves = {team: now.get(team, 0) - before.get(team, 0) for team in {*before, *now}}
    moved = sorted((team for team, by in moves.items() if by), key=lambda team: (-abs(moves[team]), team))
    if not moved:
        return "as before"
    most = f"{clean(moved[0])} {before.get(moved[0], 0)} -> {now.get(moved[0], 0)}"
    return most if len(moved) == 1 else f"{count(len(moved), 'team')}, the most {most}"


def _moves(before: object, now: object) -> str:
    return f"{before}" if before == now else f"{before} -> {now}"


def _by_wave(prospects: Sequence[Prospect], pilots: Collection[str]) -> Grid:
    rows = table(
        *("=WAVE", ">CLUSTERS", ">PROMISED", ">HEALTHY", ">CUT", ">PHANTOM", ">TO FLEX", ">CANNOT START"),
        least=("HEALTHY", "PROMISED"),
    )
    for wave in WAVES:
        own = [p for p in prospects if wave is (Wave.PILOT if p.cluster in pilots else p.wave)]
        if own:
            row(rows, wave_name(wave), len(own), *_sums(own), sum(bool(p.why_not) for p in own) or None)
    row(rows, "all", len(prospects), *_sums(prospects), None, style="bold")
    return rows


def _sums(prospects: Sequence[Prospect]) -> list[int]:
    return [sum(getattr(p, name) for p in prospects) for name in _SUMS]


_SUMS = ("assigned_gpus", "healthy_gpus", "cut_gpus", "phantom_gpus", "to_flex_gpus")


def _reasons_table(what: str, reasons: Mapping[str, str]) -> list[RenderableType]:
    if not reasons:
        return []
    rows = table("CLUSTER", f"~{what}")
    for cluster, why in list(reasons.items())[:_SHOWN]:
        row(rows, cluster, why)
    more = [line(f"and {len(reasons) - _SHOWN} more")] if len(reasons) > _SHOWN else []
    return [Text(), rows, *more]


def pace_text(pace: Pace) -> str:
    return (
        f"pace: {count(pace.parallel, 'cluster')} at once, at most {gpus(pace.budget_per_hour)} an hour and "
        f"{pace.budget_per_day:,} a day; pilots soak {duration_text(pace.pilot_soak)}, waves bake "
        f"{duration_text(pace.bake)}; the fleet rollout stops if more than "
        f"{float(pace.max_failed):.0%} of the clusters have rolled back"
    )


def wave_name(wave: Wave) -> str:
    if wave is Wave.AFTER:
        return wave.place_text
    return "pilot" if wave is Wave.PILOT else f"{wave.number} {wave}"


def abort_parts(fleet: FleetStatus, *, undo: bool) -> list[RenderableType]:
    """Return the clusters whose rollouts do not end with an abort, and what happens there."""
    ending = set(fleet.would_undo if undo else fleet.would_end)
    waiting = [m.cluster for m in fleet.members if not m.rollout and m.state is MemberState.WAITING]
    others = [m.cluster for m in fleet.members if m.rollout and m.cluster not in ending and m.stage not in _OVER]
    parts = [line(f"{count(len(waiting), 'waiting cluster')} will not be started.")] if waiting else []
    if others:
        goes = (
            "goes on by itself, and keeps its quotas"
            if len(others) == 1
            else "go on by themselves, and keep their quotas"
        )
        parts.append(line(f"{count(len(others), 'rollout')} {goes}: {some_of(others, _SHOWN)}."))
    return [*parts] or [line("No other cluster is touched.")]


_OVER = ("aborted", "closed")


def kept_parts(kept: KeptFleet, launch: FleetLaunch) -> list[RenderableType]:
    """Return what the ledger has kept of a lost fleet rollout, and what is lost."""
    clusters = len(kept.members) or len(kept.unplaced)
    rows = table("WAVE", ">CLUSTERS", ">STARTED", ">SKIPPED")
    for wave in WAVES:
        own = [c for c, its in kept.members.items() if its is wave]
        if own:
            counts = (len(own), len({*own} & {*kept.started}), len({*own} & {*kept.skipped}))
            row(rows, wave_name(wave), *(n or None for n in counts))
    waves: list[RenderableType] = [rows, Text()] if kept.members else []
    approved = (
        f"its plan {kept.plan_hash} was {f'approved by {kept.approved_by}' if kept.approved_by else 'not approved'}"
    )
    held = f"; held: {', '.join(kept.held)}" if kept.held else ""
    return [
        line((f"Fleet rollout {kept.fleet}", "bold"), f", {kept.stage}, launched {moment(kept.launched_at)}"),
        line(f"by {kept.launched_by}, owner {kept.owner}; {count(clusters, 'cluster')}; {approved}{held}."),
        Text(),
        *waves,
        line(pace_text(launch.pace)),
        line("Backstop writes and starts nothing until today's plan is approved. The ledger does not have:"),
        *unknown_lines(kept),
    ]


def unknown_lines(kept: KeptFleet) -> list[RenderableType]:
    return [line(f"- {sentence}") for sentence in kept.unknown]


def resume_parts(fleet: FleetStatus) -> list[RenderableType]:
    """Return the failures that a resume forgives, and the clusters that it starts again."""
    failed = [m for m in fleet.members if m.failed_at is not None and not m.forgiven]
    waiting = sum(m.state is MemberState.WAITING for m in fleet.members)
    holds = [line((f"{hold.id}: ", "yellow"), hold.reason) for hold in fleet.holds]
    lets = f"{count(len(failed), 'failure')} no longer {'counts' if len(failed) == 1 else 'count'}"
    goes = f"{count(waiting, 'waiting cluster')} will be started at the present pace"
    return [*holds, Text(), _members(failed, shadow=fleet.shadow), Text(), line(f"{lets}; {goes}.")]


def fleet_line(fleet: FleetStatus) -> Text:
    """Return one line, for the overview of all rollouts."""
    done = sum(w.done for w in fleet.waves)
    clusters = sum(w.clusters for w in fleet.waves)
    progress = f": {done} of {count(clusters, 'cluster')} monitored; {fleet.needs or fleet.waits_for}"
    return line(("Fleet rollout", "bold"), f" {fleet.stage}{progress}")


def of_interest(
    members: Sequence[Member], *, waiting: bool = False, failed: bool = False, every: bool = False
) -> list[Member] | None:
    """Return the members that options select; None: no option was given."""
    if not (every or waiting or failed):
        return None
    waits = MemberState.WAITING
    return [m for m in members if every or (waiting and m.state is waits) or (failed and _has_failed(m))]


def status_parts(
    fleet: FleetStatus,
    chosen: Sequence[Member] | None = None,
    *,
    now: datetime | None = None,
    could: Sequence[str] = (),
) -> list[RenderableType]:
    """Return everything about the fleet rollout, with a line for each chosen member.

    `fleet.at`: when it last had something to do, maybe long ago. `could`: who could do what it needs.
    """
    able = [("could act", line(some_of(could, 5)))] if could else []
    title = title_of(fleet, now or datetime.now(UTC))
    parts: list[RenderableType] = [
        title,
        *([lost_line(fleet.lost)] if fleet.lost else []),
        FactSheet([*facts_of(fleet), *able]),
    ]
    if fleet.stage.has_ended and fleet.waves:
        go_on = any(wave.running or wave.done or wave.failed for wave in fleet.waves)
        parts += [Text(), line(f"These figures are from its end, {moment(fleet.entered_at)}{_GO_ON if go_on else '.'}")]
    if fleet.waves:
        parts += [Text(), _waves(fleet), *_joined_note(fleet.members)]
    if chosen is not None:
        return [*parts, Text(), _members(chosen, shadow=fleet.shadow) if chosen else line("No cluster matches.")]
    failed = [m for m in fleet.members if m.state is MemberState.FAILED]
    return [*parts, *_list_running(fleet), *_some(fleet, "rolled back", "red", failed, "--failed"), *_list_held(fleet)]


def title_of(fleet: FleetStatus, now: datetime) -> Text:
    return line(
        ("fleet rollout", "bold"),
        "  ",
        (fleet.stage.value, _STYLES.get(fleet.stage, "dim")),
        f" since {moment(fleet.entered_at)} ({span(max(fleet.at, now) - fleet.entered_at)})",
        *([("  (shadow: nothing is written)", "magenta")] if fleet.shadow else []),
    )


def _has_failed(member: Member) -> bool:
    """Return whether the member has ever failed; it may be under way again."""
    return member.failed_at is not None or member.state is MemberState.FAILED


def facts_of(fleet: FleetStatus) -> list[tuple[str, Text]]:
    """Return its facts by name, in reading order."""
    facts = [("id", line(f"{fleet.fleet}, owner {fleet.owner}"))]
    if fleet.plan_hash:
        approved = f"approved by {fleet.approved_by}" if fleet.approved_by else "not approved"
        facts.append(("plan", line(f"{fleet.plan_hash}, {approved}")))
    if fleet.stage.has_ended:
        return [*facts, ("ended", line(fleet.ended_because))]
    if fleet.stage is FleetStage.RUNNING:
        number = "the pilots" if fleet.wave is Wave.PILOT else fleet.wave.full_name.removeprefix("wave ")
        facts.append(("wave", line(number)))
        facts += [("step", line(_progress(fleet.progress, fleet.at)))] if fleet.progress is not None else []
    facts.append(("now", line(fleet.waits_for)))
    facts += [(w.kind.value, line(_window_text(w, fleet))) for w in fleet.windows]
    facts += [
        ("hold", line((f"{hold.id}: ", "yellow"), f"{hold.reason} ({hold.actor}, {moment(hold.at)})"))
        for hold in fleet.holds
    ]
    if fleet.stage is FleetStage.RUNNING:
        facts.append(("budget", line(_budget(fleet))))
        facts.append(("breaker", line(_breaker(fleet))))
        facts.append(("pace", line(pace_text(fleet.pace).removeprefix("pace: "))))
    if fleet.needs:
        facts.append(("needs", line((fleet.needs, "yellow"))))
    return facts


def _progress(progress: FleetProgress, at: datetime) -> str:
    """Return step k of n, the recent rate, and the expected end."""
    late = f"{progress.of_late:,} in the last {'day' if progress.span >= DAY else span(progress.span)}"
    monitored = f"{progress.monitored:,} of {count(progress.clusters, 'cluster')} monitored"
    far = f"{progress.step} of {progress.steps}; {monitored}, {late}"
    if not progress.left:
        return f"{far}; no cluster is left to start or under way"
    if progress.expected_end is not None:
        return f"{far}; at this rate the other {progress.left:,} end by {moment(progress.expected_end)}"
    rests = f", but not before {moment(progress.not_before)}: pilot soak and bakes alone last until then"
    return f"{far}; the end is unknown{rests if progress.not_before > at else ''}"


def _window_text(window: DeclaredOver, fleet: FleetStatus) -> str:
    """Say which clusters a window keeps from starting or going on, and until when."""
    begins = f"from {moment(window.starts)} " if window.starts > fleet.at else ""
    which = (
        f"all {len(window.clusters):,} clusters"
        if len(window.clusters) == _open(fleet) > 1
        else some_of(window.clusters, 3)
    )
    return f"{begins}until {moment(window.ends)}, {window.reason}: {which}"


def _open(fleet: FleetStatus) -> int:
    return sum(not m.state.is_settled or m.state is MemberState.FAILED for m in fleet.members)


def _breaker(fleet: FleetStatus) -> str:
    """Say how many started members rolled back. The breaker counts at least as many started as the pace says."""
    started = sum(
        bool(m.rollout) and m.state is not MemberState.WAITING and not (m.forgiven or m.joined) for m in fleet.members
    )
    least = (
        f" (the share is computed from at least {count(fleet.failed_of, 'cluster')})"
        if started < fleet.failed_of
        else ""
    )
    undone = "; rollouts that people undid do not count" if any(_was_undone(m) for m in fleet.members) else ""
    stops = f"the fleet rollout stops above {float(fleet.trips_above):.0%}"
    return f"{fleet.failed:,} of {started:,} rolled back{least}; {stops}{undone}"


def _was_undone(member: Member) -> bool:
    """Return whether a person undid it, rather than a breach or a failed effect."""
    return member.state is MemberState.FAILED and member.failed_at is None


def _budget(fleet: FleetStatus) -> str:
    """Say how many GPUs may still move, and when the ledger last counted them."""
    left = f"{gpus(fleet.hour_gpus)} left for this hour, {fleet.day_gpus:,} for this day"
    if fleet.budget_at is None:
        return f"at most {left}: GPUs that others moved are not counted"
    return f"{left}, as of {moment(fleet.budget_at)}"


_CUT = {False: (">CUT",), True: (">CUT", ">WOULD CUT")}
"""The columns of cut GPUs; a shadow cuts none, and shows what it would cut."""


def _waves(fleet: FleetStatus) -> Grid:
    rows = table(
        *("=WAVE", ">CLUSTERS", ">WAITING", ">UNDER WAY", ">MONITORED", ">ROLLED BACK", ">ENDED", ">SKIPPED"),
        *_CUT[fleet.shadow],
        least=("CUT", "ENDED", "SKIPPED") if fleet.shadow else ("ENDED", "SKIPPED", "CUT"),
    )
    for wave in fleet.waves:
        counts = (wave.clusters, wave.waiting, wave.running, wave.done, wave.failed, wave.ended, wave.skipped)
        style = "bold" if wave.wave is fleet.wave and fleet.stage is FleetStage.RUNNING else ""
        cut = ("0", wave.cut_gpus) if fleet.shadow else (wave.cut_gpus or None,)
        row(rows, wave_name(wave.wave), *(n or None for n in counts), *cut, style=style)
    return rows


def _joined_note(members: Sequence[Member]) -> list[RenderableType]:
    """Say how many members already had rollouts: their plans are older than the fleet's, and differ from it."""
    joined = sum(m.joined for m in members)
    if not joined:
        return []
    had = "already had its own rollout, and the fleet rollout only watches it"
    if joined > 1:
        had = "already had their own rollouts, and the fleet rollout only watches them"
    return [
        line(
            f"{count(joined, 'cluster')} {had}: wave and cut here are those of the fleet's plan; `backstop status` "
            "shows those of a cluster's own plan"
        )
    ]


def _members(members: Sequence[Member], *, shadow: bool) -> Grid:
    rows = table(
        *("CLUSTER", "=WAVE", "=STATE", "=STAGE", *_CUT[shadow], "=STARTED", "~WAITS FOR"),
        least=("STARTED", "CUT", "WAVE"),
    )
    for member in members:
        stage = f"{member.stage}{' (shadow)' * shadow}" if member.stage else None
        cut = (0, member.cut_gpus) if shadow else (member.cut_gpus,)
        row(
            rows,
            member.cluster,
            wave_name(member.wave),
            member.state,
            stage,
            *cut,
            moment(member.started_at),
            _why(member) or None,
        )
    return rows


def _why(member: Member) -> str:
    if member.state is MemberState.WAITING and member.held_until is not None:
        return f"{member.held} (until {member.held_until:%Y-%m-%d %H:%MZ})"
    return member.needs or member.held or member.waits


def _some(fleet: FleetStatus, title: str, style: str, members: Sequence[Member], option: str) -> list[RenderableType]:
    if not members:
        return []
    more = (
        [line(f"and {len(members) - _SHOWN:,} more: backstop fleet status {option}")] if len(members) > _SHOWN else []
    )
    return [Text(), line((f"{len(members):,} {title}", style)), _members(members[:_SHOWN], shadow=fleet.shadow), *more]


def _list_running(fleet: FleetStatus) -> list[RenderableType]:
    states = (MemberState.RUNNING, MemberState.STARTING)
    members = [m for m in fleet.members if m.state in states]
    return _some(fleet, "under way", "bold", members, "--all")


def _list_held(fleet: FleetStatus) -> list[RenderableType]:
    running = fleet.stage is FleetStage.RUNNING
    held = [m for m in fleet.members if running and m.state is MemberState.WAITING and m.held]
    return _some(fleet, "cannot start now", "yellow", held, "--waiting")
