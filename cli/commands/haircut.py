"""`backstop haircut`: the real cost of several buffers, as tables, JSON, CSV or one page."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.plan import plan_from
from cli.lazy import command
from cli.list_options import Listing, listed
from cli.options import LOOK, Actor, ClusterOrAll, MaxTier, SettingsOption, actor_of, opt, overlay_of
from models.base import fraction_text
from models.errors import BadInput, Refusal

if TYPE_CHECKING:
    from models.cluster.policy import Policy
    from models.cluster.snapshot import Snapshot
    from models.planning.fleet_haircut import Haircut, WorkCut


class By(StrEnum):
    """The subject of each row of the table."""

    FLEET = "fleet"
    WAVE = "wave"
    CLUSTER = "cluster"
    TEAM = "team"


_MOST = 8
"""The most buffers in one report that fit on a screen."""
_USUAL = "0.05,0.10,0.15,0.20"


@command(
    LOOK,
    "backstop haircut --file examples/fleet.yaml",
    "backstop haircut --by team --buffers 0.10,0.15",
    "backstop haircut --file examples/fleet.yaml --html haircut.html",
)
@listed
def haircut(
    named: ClusterOrAll = "",
    file: Annotated[str, opt("FILE", "Read a fleet file (-: stdin) instead of the ledger.")] = "",
    buffers: Annotated[str, opt("SHARES", "The buffers to compare, with commas between them.")] = _USUAL,
    by: Annotated[By, typer.Option(help="What a row of the table stands for.")] = By.FLEET,
    at: Annotated[
        str,
        opt(
            "SHARE",
            "The buffer to explain in words. Default: 0.15 if --buffers has it, else the largest.",
            show_default=False,
        ),
    ] = "",
    html: Annotated[str, opt("FILE", "Write one self-contained HTML page with plots.")] = "",
    csv: Annotated[str, opt("FILE", "Write all figures as CSV (-: stdout).")] = "",
    max_tier: MaxTier = "",
    policy: SettingsOption = None,
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """Show what a buffer costs: how many GPUs are cut at 5, 10, 15 and 20 %, and how many of them are phantom.

    Phantom GPUs have no healthy GPU behind them now; the others move to flex and stay usable. Changes nothing.
    """
    wanted = shares("--buffers", buffers)
    explained = _index_of(at, wanted)
    overlay = overlay_of(policy, max_tier=max_tier)
    if "buffer" in overlay.settings:
        raise BadInput(
            "--policy buffer is given, but the report compares the buffers of --buffers: leave --policy buffer out"
        )
    if by is By.FLEET:
        how.of_one("--by fleet (the default)")
    taken = ((how.form_text, not how.for_people), ("--csv -", csv == "-"), ("--html -", html == "-"))
    to_screen = [option for option, on in taken if on]
    if len(to_screen) > 1:
        raise BadInput(f"{to_screen[0]} and {to_screen[1]} both write to standard output: give one of them")
    snapshots, _ = plan_from(file, named, actor_of(actor))
    if not snapshots:
        raise Refusal("the ledger has no cluster: import one with `backstop fleet import`, or give --file")
    fleet = [(snapshot, overlay.apply_to(default)) for snapshot, default in snapshots]
    comparison = _report(fleet, wanted)
    _answer(comparison, explained, by=by, html=html, csv=csv, how=how)


def shares(option: str, text: str) -> tuple[Fraction, ...]:
    """Parse the buffers, the smallest first. Errors: BadInput naming the option and the value."""
    distinct: set[Fraction] = set()
    for word in text.split(","):
        try:
            share = Fraction(word.strip())
        except (ValueError, ZeroDivisionError):
            raise BadInput(f"{option} must be shares such as 0.05,0.10, not {word.strip()!r}") from None
        if not 0 <= share < 1:
            raise BadInput(f"{option} must be at least 0 and less than 1, not {word.strip()}")
        distinct.add(share)
    if len(distinct) > _MOST:
        raise BadInput(f"{option} takes at most {_MOST} shares, not {len(distinct)}")
    return tuple(sorted(distinct))


def _index_of(at: str, buffers: tuple[Fraction, ...]) -> int:
    usual = Fraction(15, 100)
    if not at:
        return buffers.index(usual) if usual in buffers else len(buffers) - 1
    at_buffers = shares("--at", at)
    if len(at_buffers) != 1 or at_buffers[0] not in buffers:
        compared = ", ".join(map(fraction_text, buffers))
        raise BadInput(f"--at must be one of --buffers ({compared}), not {at}")
    return buffers.index(at_buffers[0])


def _report(fleet: list[tuple[Snapshot, Policy]], buffers: tuple[Fraction, ...]) -> Haircut:
    from cli.output import progress
    from models.planning.fleet_haircut import haircut as report

    with progress("planning", len(fleet)) as ticker:
        return report(fleet, buffers, ticker)


def _answer(comparison: Haircut, explained: int, *, by: By, html: str, csv: str, how: Listing) -> None:
    from cli.json_answers_haircut import HaircutAnswer
    from cli.output import show, write
    from views.haircut import as_csv, fleet_parts, parts_by, rows_of
    from views.words import line

    if html:
        from cli.pages.haircut import page

        write(html, "--html", page(comparison, explained))
    if csv:
        write(csv, "--csv", as_csv(comparison))
    if "-" in (csv, html):
        return
    if how.for_people and (written := [file for file in (html, csv) if file]):
        show(line(("Written", "bold"), f": {' and '.join(written)}"))
    if by is By.FLEET:
        how.tell(lambda: HaircutAnswer.build_from(comparison), lambda: fleet_parts(comparison, explained), None)
        return
    chosen = _choose_rows(comparison, explained, by, how)
    names = list(rows_of(chosen, by.value))
    of = len(rows_of(comparison, by.value)), by.value
    how.tell(lambda: HaircutAnswer.build_from(chosen), lambda: parts_by(chosen, by.value, explained), names, of)


def _choose_rows(comparison: Haircut, explained: int, by: By, how: Listing) -> Haircut:
    """Return the comparison with only the chosen rows, by their values at the explained buffer."""
    from cli.json_answers_haircut import HaircutPart, HaircutTeam
    from views.haircut import rows_of

    rows, kind = rows_of(comparison, by.value), HaircutTeam if by is By.TEAM else HaircutPart
    parts = [kind(name=name, **dict(at_each[explained])) for name, at_each in rows.items()]
    names = [one.name for one in how.rows(parts, kind)]
    own = getattr(comparison, f"{by}s")
    keys = {str(key): key for key in own}
    shown = {*names}
    works = tuple(tuple(cut for cut in at_each if _row_of(cut, by) in shown) for at_each in comparison.works)
    return comparison.model_copy(update={f"{by}s": {keys[name]: own[keys[name]] for name in names}, "works": works})


def _row_of(cut: WorkCut, by: By) -> str:
    return {By.TEAM: cut.team, By.CLUSTER: cut.cluster}.get(by, cut.wave)
