"""The effects of an import for people, grouped by kind, with the file's line of each refused one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType

from models.cluster.import_outcome import Departure, FilePlace, FleetOutcome, Line, Verb
from models.texts import some_of
from views.words import count, indent, line

_MOST = 200
"""The most lines of one kind; --json has all."""
_NAMED = 6
_TOLD = 20
"""The most lines of one kind that a finished import shows of what it wrote besides quotas."""
_SIGNS = {Verb.ADDED: ("+", "green"), Verb.CHANGED: ("~", "yellow"), Verb.REMOVED: ("-", "red")}


def diff_parts(outcome: FleetOutcome, places: Mapping[FilePlace, str]) -> list[RenderableType]:
    """Return the differences that a finished import does not count. `places`: those of refused lines in the file."""
    parts: list[RenderableType] = []
    for verb, (sign, style) in _SIGNS.items():
        if verb is Verb.REMOVED or not outcome.done:
            parts += _limit_lines(
                [line((f"{sign} ", style), each.sentence) for each in outcome.of(verb)], outcome, verb
            )
        else:
            parts += _list_uncounted(outcome, verb)
    parts += lost_parts(outcome)
    parts += kept_parts(outcome)
    refused = outcome.of(Verb.REFUSED)
    parts += _limit_lines(
        [line(("! ", "red"), _place_sentence(each, places)) for each in refused], outcome, Verb.REFUSED
    )
    if out := sorted({each.cluster for each in refused if each.cluster and each.path}):
        parts.append(line(f"  Nothing changes in a cluster with a refused line: {some_of(out, _NAMED)}."))
    if any(each.kind == "quota" for each in refused):
        parts.append(line("  To raise a quota during a rollout: `backstop request new`."))
        parts.append(line("  To end the rollout first: `backstop close` or, if that is refused, `backstop abort`."))
    return parts


def lost_parts(outcome: FleetOutcome) -> list[RenderableType]:
    """Say what is deleted with removed clusters; `fleet remove` counts it, one cluster at a time."""
    gone = sum(each.kind == "cluster" for each in outcome.of(Verb.REMOVED))
    if not gone:
        return []
    whose = "it" if gone == 1 else "them"
    kinds = "health samples, usage samples, jobs, tallies, windows that no fleet file declares, and past rollouts"
    return [line(f"  deleted for good with {whose}: {kinds}")]


def undo_text(outcome: FleetOutcome) -> str:
    """Say how to undo an import; empty if it has written nothing."""
    totals = outcome.totals
    if not outcome.done or not any(totals.get(verb) for verb in _SIGNS):
        return ""
    if not (totals.get(Verb.CHANGED) or totals.get(Verb.REMOVED)):
        return "To undo: import a file without these additions, with --prune; or: backstop fleet remove CLUSTER"
    pruned = " with --prune, which also removes what this import added" if totals.get(Verb.ADDED) else ""
    return f"To undo: import the previous file{pruned}. An import does not reverse what rollouts write from now on."


def _list_uncounted(outcome: FleetOutcome, verb: Verb) -> list[RenderableType]:
    """Return what a finished import wrote about the fleet and clusters, beside the quotas that it counts."""
    sign, style = _SIGNS[verb]
    counted = {"cluster", "quota"} | ({"team"} if verb is Verb.ADDED else set())
    uncounted = [each for each in outcome.of(verb) if each.kind not in counted or (each.kind == "cluster" and each.why)]
    parts: list[RenderableType] = [line((f"{sign} ", style), each.sentence) for each in uncounted[:_TOLD]]
    if (more := len(uncounted) - _TOLD) > 0:
        parts.append(line(f"  and {more:,} more {verb}, besides quotas"))
    return parts


def _limit_lines(lines: Sequence[RenderableType], outcome: FleetOutcome, verb: Verb) -> list[RenderableType]:
    more = outcome.totals.get(verb, 0) - min(len(lines), _MOST)
    return [*lines[:_MOST], *([line(f"  and {more} more {verb}")] if more > 0 else [])]


def _place_sentence(each: Line, places: Mapping[FilePlace, str]) -> str:
    place = places.get(each.path, "") if each.path else ""
    return f"{place + ': ' if place else ''}{each.sentence}"


def kept_parts(outcome: FleetOutcome) -> list[RenderableType]:
    """Return the values that stay as a rollout, a grant, Slurm or a health source set them."""
    kept = outcome.of(Verb.KEPT)
    values = [each for each in kept if each.kind != "health"]
    parts: list[RenderableType] = [
        line(("= ", "cyan"), f"{each.what} stays {each.before} (the file has {each.after}): {each.why}")
        for each in values[:_NAMED]
    ]
    if (more := len(values) - _NAMED) > 0:
        parts.append(line(f"  and {more} more {'stays as it is' if more == 1 else 'stay as they are'}"))
    islands = [f"{each.cluster}/{each.name}" for each in kept if each.kind == "health"]
    if islands:
        here = f"the health of {count(len(islands), 'island')} is not imported, because a health source reports it"
        parts.append(line(("= ", "cyan"), f"{here}: {some_of(islands, _NAMED)}"))
    return parts


def left_out_text(outcome: FleetOutcome) -> str:
    """Return `3 quotas and 1 cluster are in the ledger but not in the file: they stay`, or nothing."""
    lines = outcome.of(Verb.LEFT_OUT)
    words = {"quota": "quota", "cluster": "cluster", "island": "island", "team": "team", "policy": "policy setting"}
    counts = {word: sum(each.kind == kind for each in lines) for kind, word in words.items()}
    counted = [count(number, word) for word, number in counts.items() if number]
    if not counted:
        return ""
    many = sum(counts.values()) > 1
    what = counted[0] if len(counted) == 1 else f"{', '.join(counted[:-1])} and {counted[-1]}"
    are, stay = ("are", "they stay") if many else ("is", "it stays")
    return f"{what} {are} in the ledger but not in the file: {stay}; --prune removes {'them' if many else 'it'}"


def left_out_parts(outcome: FleetOutcome) -> list[RenderableType]:
    """Return that sentence, and the names."""
    text = left_out_text(outcome)
    if not text:
        return []
    lines = outcome.of(Verb.LEFT_OUT)
    shown = [line(f"{each.what}{' (' + each.before + ')' if each.before else ''}") for each in lines[:_MOST]]
    return [line(f"{text}."), *indent(_limit_lines(shown, outcome, Verb.LEFT_OUT))]


def summary_text(outcome: FleetOutcome) -> str:
    """Return `differences: 2 added, 1 changed, 0 removed, 0 kept, 1 refused; unchanged: 38 clusters, 96 quotas, 3
    teams`."""
    counts = ", ".join(f"{outcome.totals.get(verb, 0)} {verb}" for verb in (*_SIGNS, Verb.KEPT, Verb.REFUSED))
    unchanged = ", ".join(count(number, what[:-1]) for what, number in outcome.untouched.items())
    return f"differences: {counts}; unchanged: {unchanged}"


def _one_of(what: str) -> str:
    return f"{what.removesuffix('ies')}y" if what.endswith("ies") else what.removesuffix("s")


def undone_parts(answer: Departure, *, renamed: bool = False) -> list[RenderableType]:
    """Return what is removed or renamed with a cluster."""
    parts: list[RenderableType] = [line((answer.cluster, "bold"), f": {answer.summary}")]
    if answer.history:
        counted = ", ".join(
            f"{number:,} {_one_of(what) if number == 1 else what}" for what, number in answer.history.items()
        )
        parts.append(line(f"  {'renamed with it' if renamed else 'deleted for good'}: {counted}"))
    return parts
