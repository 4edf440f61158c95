"""`backstop hold` and `backstop calendar`: maintenance, incidents and freezes, declared in advance."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from cli.completion_names import note_windows
from cli.consent import Yes
from cli.lazy import command
from cli.list_options import Listing, listed, plain_listing, tell
from cli.options import (
    LOOK,
    Actor,
    AsJson,
    ClusterOrAll,
    NeededReason,
    Otherwise,
    actor_of,
    arg,
    check_model,
    check_name_or_all,
    examples,
    flag,
    needed_cluster,
    opt,
)
from cli.selection import GLOB
from cli.session import ask
from cli.time_options import instant
from models.cluster.windows import WindowKind
from models.errors import BadInput
from models.lifecycle.command_rows import HALT
from models.texts import some_of

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.cluster.fleet_file import ClusterSpec
    from models.cluster.windows import Declaration, Declared, Entry, Foretold, Window

_NAMED = 12
"""The most windows that a sentence names."""
Kind = Annotated[
    WindowKind,
    typer.Option(
        help="maintenance and sev take capacity; a freeze takes none. While any of them lasts, gates stay shut; "
        "rollbacks still happen.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(cls=_Calendar, help="Maintenance windows, incidents and freezes.")
    group.command(
        "show", epilog=examples("backstop calendar show", "backstop calendar show --filter window.kind=sev -o wide")
    )(show_calendar)
    group.command(
        "import",
        epilog=examples(
            "backstop calendar import maintenance.ics",
            "backstop calendar import sevs.ics --cluster h100-worked --kind sev",
        ),
    )(import_calendar)
    group.command(
        "end",
        epilog=examples(
            "backstop calendar end h100-worked 12 --reason 'done early'",
            "backstop calendar end --hold 3f2a91c07b5e --reason 'the year-end freeze is over'",
        ),
    )(end)
    app.add_typer(group, name="calendar", rich_help_panel=LOOK)


class _Calendar(Otherwise):
    """`backstop calendar CLUSTER` is `backstop calendar show CLUSTER`."""

    otherwise = "show"


@command(
    HALT,
    "backstop hold h100-worked --kind sev --until 4h --reason 'fabric is flapping'",
    "backstop hold h100-worked --kind maintenance --from 2026-12-01T06:00Z --until 2026-12-01T18:00Z "
    "--gpus 64 --reason 'new firmware'",
    "backstop hold --fleet --kind freeze --from 2026-12-20T00:00Z --for 15d --reason 'year end'",
)
def hold(
    kind: Kind,
    until: Annotated[
        str,
        opt(
            "TIME",
            "The end: a time such as 2026-12-01T18:00Z, or a length from the start such as 4h. --for means the same.",
            "--until",
            "--for",
            show_default=False,
        ),
    ],
    reason: NeededReason,
    clusters: Annotated[
        list[str] | None,
        arg("CLUSTER", "One or more clusters, or globs of clusters in the ledger: 'h100-*'.", show_default=False),
    ] = None,
    fleet: Annotated[bool, flag("--fleet", "Every cluster of the ledger, and clusters that are added later.")] = False,
    begins: Annotated[
        str,
        opt(
            "TIME",
            "The start: a time such as 2026-12-01T06:00Z, or a delay from now such as 2h. Default: now.",
            "--from",
        ),
    ] = "",
    islands: Annotated[str, opt("NAMES", "Only these islands, with commas between them.")] = "",
    gpus: Annotated[int | None, opt("N", "How many GPUs the window takes. Default: all.", min=0)] = None,
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Declare a maintenance window, an incident (SEV) or a freeze: gates stay shut while it lasts.

    Capacity that the window takes does not count towards a breach, and Backstop names the quotas that lose their
    backing. For several clusters Backstop shows what it will hold and asks; their windows get one name, and
    `calendar end --hold NAME` ends them together.
    """
    from models.cluster.windows import FLEET_HOLD, HOLD, Declared, Window
    from views.words import moment

    now = datetime.now(UTC)
    names = list(dict.fromkeys(needed_cluster(name) for name in clusters or ()))
    if fleet == bool(names):
        raise BadInput(
            f"CLUSTER {names[0]!r} is given together with --fleet: give one of them"
            if names
            else "CLUSTER is missing: name clusters, or give --fleet"
        )
    if kind is WindowKind.FREEZE and (gpus is not None or islands):
        raise BadInput(
            f"{'--gpus' if gpus is not None else '--islands'} is given, but a freeze takes no capacity: "
            "leave this option out"
        )
    starts = instant("--from", begins, now) if begins else now
    ends = instant("--until", until, starts)
    if ends <= starts:
        raise BadInput(f"--until {until} is not after its start, {moment(starts)}")
    if ends <= now:
        raise BadInput(f"--until {until} is in the past: the time is {moment(now)}")
    window = check_model(Window, kind=kind, starts=starts, ends=ends, reason=reason, islands=_names(islands), gpus=gpus)
    person = actor_of(actor)
    ahead_of = now if begins else now - timedelta.resolution  # one from now takes something too: it is named as ahead
    names, globbed = _match_clusters(names, person), any(map(GLOB.search, names))
    if (fleet or globbed or len(names) > 1) and not yes:
        names = _confirm_clusters(names, window, person, ahead_of, fleet=fleet, as_json=as_json)
    # Chosen here: whoever carries it out again declares nothing twice.
    source = f"{FLEET_HOLD if fleet else HOLD}{secrets.token_hex(6)}"

    async def question(door: Backstop) -> tuple[Sequence[Entry], list[ClusterSpec]]:
        from models.questions import Declare

        held = names or [c.name for c in await door.clusters()]
        declared = Declared(source=source, windows=tuple((name, window) for name in held))
        stand = (await door.ask(Declare(declared=(declared,)))).stand
        return stand, await door.clusters_named(held)

    entries, specs = ask(person, question)
    _answer(entries, (), specs, plain_listing(as_json), undo=_ending(entries), now=ahead_of)


def _match_clusters(names: list[str], person: str) -> list[str]:
    """Return the clusters that names and globs match, each once. Errors: BadInput for one that matches none."""
    if not any(map(GLOB.search, names)):
        return names
    ledger = sorted(c.name for c in ask(person, lambda door: door.clusters()))
    matched: dict[str, None] = {}
    for name in names:
        alike = [name] if name in ledger or not GLOB.search(name) else [c for c in ledger if fnmatchcase(c, name)]
        if not alike:
            raise BadInput(
                f"{name}: the glob matches no cluster of the ledger; `backstop fleet show` lists the clusters"
            )
        matched.update(dict.fromkeys(alike))
    return list(matched)


def _confirm_clusters(
    names: list[str], window: Window, person: str, now: datetime, *, fleet: bool, as_json: bool
) -> list[str]:
    """Show the clusters, ask, and return them. Errors: those of `consent`; BadInput if there is none."""
    from cli.consent import needs_somebody, show_and_ask
    from models.planning.window_forecast import forecast_windows
    from views.calendar import hold_parts
    from views.words import count

    needs_somebody(f"Hold {'every cluster' if fleet else count(len(names), 'cluster')}?", as_json=as_json)

    async def question(door: Backstop) -> tuple[list[ClusterSpec], list[str]]:
        specs = await (door.clusters() if fleet else door.clusters_named(names))
        return specs, [rollout.cluster for rollout in await door.rollouts() if rollout.open]

    clusters, opened = ask(person, question)
    specs = {c.name: c for c in clusters}
    held = list(specs) if fleet else names
    if not held:
        raise BadInput("the ledger has no cluster: add clusters with `backstop fleet import FILE`")
    takes = {
        name: [
            forecast
            for forecast in forecast_windows(name, spec.quotas, spec.islands, (*spec.windows, window), now)
            if _is(forecast, window)
        ]
        for name, spec in specs.items()
    }
    parts = hold_parts(window, held, [name for name in held if name in set(opened)], takes, now)
    show_and_ask(f"Hold {count(len(held), 'cluster')}?", parts)
    return held


def _is(ahead: Foretold, window: Window) -> bool:
    return (ahead.kind, ahead.starts, ahead.reason) == (window.kind, window.starts, window.reason)


@listed
def show_calendar(cluster: ClusterOrAll = "", *, how: Listing, actor: Actor = "") -> None:
    """Show declared windows that are not over, and the quotas that will lack hardware because of them."""
    from models.cluster.windows import Entry

    async def question(door: Backstop) -> tuple[Sequence[Entry], list[ClusterSpec]]:
        entries = await door.calendar(cluster)
        return entries, await door.clusters_named({e.cluster for e in entries})

    entries, clusters = ask(actor_of(actor), question)
    if not cluster:
        note_windows((e.cluster, e.id) for e in entries)
    chosen = how.rows(entries, Entry)
    left = {e.cluster for e in chosen}
    of = [c for c in clusters if c.name in left or not how.filters]
    _answer(chosen, (), of, how, stand=len(entries))


def import_calendar(
    file: Annotated[str, arg("FILE", "An iCalendar file (.ics).")],
    cluster: Annotated[
        str,
        opt(
            "NAMES", "The clusters of every event in FILE. Default: the clusters that each event names as its location."
        ),
    ] = "",
    kind: Annotated[
        WindowKind, typer.Option(help="The kind of events that name no category.")
    ] = WindowKind.MAINTENANCE,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Declare the events of an iCalendar file; imported again, an event replaces its earlier version.

    Backstop recognizes an event by its UID. It withdraws the windows of cancelled events, and declares recurring
    events for a year ahead. It names and leaves out an event that it cannot read, and ends with 1 (docs/reading.md).
    """
    from cli.output import complain
    from client.inputs.calendars import read_calendar

    calendar = read_calendar(file, datetime.now(UTC), _names(cluster) or (), kind)

    async def question(door: Backstop) -> tuple[Declaration, list[str], list[ClusterSpec]]:
        declaration, refused = await _declare(door, calendar.declared)
        return declaration, refused, await door.clusters_named({e.cluster for e in declaration.stand})

    declaration, refused, specs = ask(actor_of(actor), question)
    left_out = (*calendar.left_out, *refused)
    again = [_redeclare_command([entry]) for entry in declaration.gone]
    undo = "\n".join([*([_ending(declaration.new)] if declaration.new else []), *again])
    _answer(declaration.stand, declaration.gone, specs, plain_listing(as_json), left_out, undo=undo)
    if left_out:
        for sentence in left_out:
            complain(f"left out: {sentence}")
        raise typer.Exit(1)


async def _declare(door: Backstop, declared: Sequence[Declared]) -> tuple[Declaration, list[str]]:
    """Declare the windows; return the result, and why some were refused. Errors: BadInput if all were."""
    from models.cluster.windows import Declaration
    from models.questions import Declare

    try:
        return await door.ask(Declare(declared=tuple(declared))), []
    except BadInput as error:
        if len(declared) == 1:
            raise error from None
    taken, refused = [], []
    for one in declared:
        try:
            taken.append(await door.ask(Declare(declared=(one,))))
        except BadInput as error:
            refused.append(error)
    if not taken:
        raise refused[0]
    whole = Declaration(
        stand=tuple(e for each in taken for e in each.stand),
        new=tuple(e for each in taken for e in each.new),
        gone=tuple(e for each in taken for e in each.gone),
    )
    return whole, [error.message for error in refused]


def end(
    reason: NeededReason,
    cluster: Annotated[str, arg("CLUSTER", "The window's cluster, given with ID.", callback=check_name_or_all)] = "",
    number: Annotated[int | None, arg("ID", "The window's ID, as `calendar show` lists it.", min=1)] = None,
    hold: Annotated[
        str, opt("NAME", "The name that `backstop hold` gave its windows; `calendar show` lists it.", "--hold")
    ] = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """End a window, by CLUSTER and ID, or with --hold every window that one `backstop hold` declared. A window
    that has not begun is cancelled.

    A window of a fleet file comes back with the file's next import.
    """
    from cli.json_answers import CalendarAnswer
    from models.cluster.windows import span_text
    from views.words import count, line

    if not reason.strip():
        raise BadInput("--reason must say why")
    if hold and cluster:
        raise BadInput(f"--hold {hold!r} is given together with CLUSTER {cluster!r}: give one of them")
    if not hold and (not cluster or number is None):
        raise BadInput(f"{'ID' if cluster else 'CLUSTER'} is missing: name a window by CLUSTER and ID, or give --hold")

    async def question(door: Backstop) -> tuple[list[Entry], list[Entry]]:
        from models.questions import EndHold, EndWindow

        calendar = await door.calendar(cluster)
        if number is not None:
            before = [e for e in calendar if e.id == number]
            return before, [await door.ask(EndWindow(cluster=cluster, number=number, reason=reason))]
        before = _of_hold(hold, calendar)
        clusters = tuple(dict.fromkeys(e.cluster for e in before))
        return before, [*await door.ask(EndHold(source=before[0].source, clusters=clusters, reason=reason))]

    before, ended = ask(actor_of(actor), question)
    undo = _redeclare_command(before or ended)  # which is over already where it is in no calendar
    first = ended[0]
    what = "Ended" if first.window.starts <= datetime.now(UTC) else "Cancelled"
    of = first.cluster if len(ended) == 1 else count(len(ended), "cluster")
    sentence = line((what, "bold"), f": {span_text(first.window)} of {of}.")
    answer = CalendarAnswer(windows=tuple(ended), foretold={}, undo=undo)
    tell(answer, lambda: [sentence, line(undo)], as_json=as_json)


def _of_hold(name: str, calendar: Sequence[Entry]) -> list[Entry]:
    """Return the hold's windows that are not over. Errors: BadInput naming the option and the value."""
    from models.cluster.windows import hold_name

    own = [e for e in calendar if e.source and name in (e.source, hold_name(e.source))]
    if not own:
        raise BadInput(
            f"--hold {name!r}: no current or coming hold has this name; `backstop calendar show` lists the holds"
        )
    return own


def _redeclare_command(entries: Sequence[Entry]) -> str:
    """Return the command that declares the windows again as they were."""
    from models.cluster.windows import FLEET_HOLD

    window, now = entries[0].window, datetime.now(UTC)
    fleet = entries[0].source.startswith(FLEET_HOLD) and len(entries) > 1
    held = "--fleet" if fleet else " ".join(shlex.quote(e.cluster) for e in entries)
    if window.ends <= now:
        return "It cannot be undone: the window's time is over."
    begins = [] if window.starts <= now else [f"--from {window.starts:%Y-%m-%dT%H:%M:%SZ}"]
    more = [f"--islands {shlex.quote(','.join(window.islands))}"] if window.islands else []
    more += [] if window.gpus is None else [f"--gpus {window.gpus}"]
    words = [f"backstop hold {held} --kind {window.kind.value}", *begins]
    return f"Undo: {' '.join([*words, f'--until {window.ends:%Y-%m-%dT%H:%M:%SZ}', *more])} --reason '...'"


def _names(text: str) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in text.split(",") if name.strip()) or None


def _answer(
    entries: Sequence[Entry],
    gone: Sequence[Entry],
    clusters: Sequence[ClusterSpec],
    how: Listing,
    left_out: Sequence[str] = (),
    stand: int = 0,
    *,
    undo: str = "",
    now: datetime | None = None,
) -> None:
    """Print the calendar. `undo`: a line for each change. `now`: later windows are ahead; default: the present."""
    from cli.json_answers import CalendarAnswer
    from views.calendar import calendar_parts
    from views.words import line

    now = now or datetime.now(UTC)
    foretold = {c.name: _forecast(c, now) for c in clusters}
    foretold = {name: ahead for name, ahead in foretold.items() if ahead}
    how.tell(
        lambda: CalendarAnswer(
            windows=tuple(entries), taken_back=tuple(gone), foretold=foretold, left_out=tuple(left_out), undo=undo
        ),
        lambda: [*calendar_parts(entries, gone, foretold, now), *map(line, undo.splitlines())],
        [f"{shlex.quote(entry.cluster)} {entry.id}" for entry in entries],
        (stand, "window"),
    )


def _ending(entries: Sequence[Entry]) -> str:
    """Return the command that ends the declared windows; one command ends those that were declared together."""
    from models.cluster.windows import hold_name

    each = [f"{shlex.quote(entry.cluster)} {entry.id}" for entry in entries]
    if len(each) == 1:
        return f"Undo: backstop calendar end {each[0]} --reason '...'"
    if len({entry.source for entry in entries}) == 1:
        return f"Undo: backstop calendar end --hold {shlex.quote(hold_name(entries[0].source))} --reason '...'"
    return f"Undo: backstop calendar end CLUSTER ID --reason '...', for each of {some_of(each, _NAMED)}"


def _forecast(cluster: ClusterSpec, now: datetime) -> tuple[Foretold, ...]:
    from models.planning.window_forecast import forecast_windows

    return forecast_windows(cluster.name, cluster.quotas, cluster.islands, cluster.windows, now)
