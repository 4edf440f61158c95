"""The impact of a command, which a person reads before agreeing. The rollouts themselves report the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from models.errors import BackstopError
from models.lifecycle.command_rows import Asks, CommandRow
from models.rollout.command_previews import Ahead
from models.rollout.status_models import RolloutStatus
from models.texts import some_of
from views.words import count, gpus, line, row, table

_SHOWN = 30
"""The most rows of a table; the others are counted."""
_NAMED = 8


def consequence_parts(command: CommandRow, rollouts: Sequence[Ahead]) -> list[RenderableType]:
    """Return the impact of a command on these rollouts, if the command's row asks for that; else nothing."""
    match command.asks:
        case Asks.UNDO:
            return undo_parts(rollouts, ends=command.name == "abort")
        case Asks.NOTICE:
            return promote_parts(rollouts)
        case Asks.RISK:
            return close_parts(rollouts)
    return []


def undo_parts(rollouts: Sequence[Ahead], *, ends: bool) -> list[RenderableType]:
    """Return what teams get back, what hardware backs of it today, and who is notified. `ends`: rollouts end too."""
    parts: list[RenderableType] = []
    written = [a for a in rollouts if a.back]
    if written:
        rows = table("CLUSTER", "TEAM", ">NOW", ">COMES BACK", ">BACKED TODAY", "~NOTE")
        lines = [(a.cluster, team) for a in written for team in a.back]
        for cluster, t in lines[:_SHOWN]:
            note = "changed by others: left alone" if t.by_others else ""
            row(rows, cluster, t.team, t.gpus, t.back_gpus, t.backing_gpus, note)
        more = len(lines) - _SHOWN
        parts += [rows, *([_more(more)] if more > 0 else []), Text()]
    parts += _limit_lines(
        [line((a.cluster, "bold"), f" ({a.stage}): {_unwritten(a)}.") for a in rollouts if not a.back]
    )
    return [*parts, line(_sum(rollouts, ends=ends)), _notified_line(rollouts, {t for a in rollouts for t in a.told})]


def left_parts(
    refusing: Sequence[Ahead], refusals: Mapping[str, str], silent: Mapping[str, BackstopError]
) -> list[RenderableType]:
    """Return the rollouts that the command is not given to, and why."""
    lines = [
        line((cluster, "bold"), f" is left out: {error.message}. --yes gives it the command too.")
        for cluster, error in silent.items()
    ]
    return [*refusing_parts(refusing, refusals), *_limit_lines(lines)]


def refusing_parts(refusing: Sequence[Ahead], refusals: Mapping[str, str]) -> list[RenderableType]:
    """Return the rollouts whose stage refuses the command."""
    return _limit_lines(
        [line((a.cluster, "bold"), f" ({a.stage}) will refuse: {refusals[a.cluster]}.") for a in refusing]
    )


def _limit_lines(lines: Sequence[RenderableType]) -> list[RenderableType]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([_more(more)] if more > 0 else [])]


def _more(number: int) -> Text:
    return line(f"and {number} more: backstop status CLUSTER")


def _unwritten(rollout: Ahead) -> str:
    if rollout.shadow:
        return "a shadow: no quota was written"
    if rollout.undoes:
        return "every quota has the value that it would have without the rollout"
    if rollout.undone or rollout.stage == "rolled_back":
        return "its changes are undone already"
    return "nothing has been applied yet"


def _sum(rollouts: Sequence[Ahead], *, ends: bool) -> str:
    back = [t for a in rollouts for t in a.back if not t.by_others]
    number = count(len(rollouts), "rollout")
    sentence = f"{number} {'ends' if len(rollouts) == 1 else 'end'}" if ends else number
    raised, lowered = [t for t in back if t.back_gpus > t.gpus], [t for t in back if t.back_gpus < t.gpus]
    for those, verb, way in ((raised, "come", "back to"), (lowered, "go", "from")):
        moved = sum(abs(t.back_gpus - t.gpus) for t in those)
        if moved:
            sentence += (
                f"; {gpus(moved)} {verb}{'s' if moved == 1 else ''} {way} {count(len({t.team for t in those}), 'team')}"
            )
    lacking = sum(a.unbacked_gpus for a in rollouts if not a.shadow)
    if not back:
        sentence += "; no quota changes"
    elif lacking:
        them = "it" if lacking == 1 else "them"
        sentence += f"; then {count(lacking, 'promised GPU')} will have no healthy GPU behind {them}, by today's health"
    elif all(t.backing_gpus is not None for t in back):
        sentence += "; today's hardware backs all of it"
    return f"{sentence}."


def _notified_line(rollouts: Sequence[Ahead], teams: set[str]) -> Text:
    if teams:
        return line(f"Will be notified: {some_of(sorted(teams), _NAMED)} ({count(len(teams), 'team')}).")
    return line("A shadow: no team is notified." if all(a.shadow for a in rollouts) else "No team is notified.")


def approved_line(rollouts: Sequence[Ahead]) -> Text:
    """Say how many teams an approval notifies. If a rollout does not report that: all teams it cuts."""
    teams: set[str] = set()
    for a in rollouts:
        if a.approve_told is not None:
            teams.update(a.approve_told)
        elif a.plan is not None and not a.shadow:
            teams.update(quota.team for quota in a.plan.quotas if quota.leaf and quota.cut_gpus)
    if teams:
        return line(f"{count(len(teams), 'team')} will be notified.")
    return line("A shadow: no team is notified." if all(a.shadow for a in rollouts) else "No team will be notified.")


def close_parts(rollouts: Sequence[Ahead]) -> list[RenderableType]:
    """Return the quotas at risk in these rollouts."""
    rows = table("CLUSTER", "=STAGE", "TEAM", ">LACKS NOW")
    for a in rollouts:
        for team, lacking in sorted(a.at_risk.items()):
            row(rows, a.cluster, a.stage, team, lacking)
        if not a.at_risk:
            row(rows, a.cluster, a.stage, None, None)
    stuck = [a.cluster for a in rollouts if a.stage == "stuck"]
    left = f"; changes in {some_of(stuck, _NAMED)} that could not be undone stay" if stuck else ""
    number = f"{count(len(rollouts), 'rollout')} {'ends' if len(rollouts) == 1 else 'end'}"
    ends = f"{number}, and so does Backstop's promise; the quotas keep their values{left}."
    return [rows, Text(), line(ends), _notified_line(rollouts, {t for a in rollouts for t in a.close_told})]


def promote_parts(rollouts: Sequence[Ahead]) -> list[RenderableType]:
    """Return what a promote does not waive: a team without notice, an objection, another condition of the gate."""
    return _limit_lines([line((a.cluster, "bold"), f": {text}.") for a in rollouts for text in a.promote_leaves])


def many_parts(clusters: Sequence[str], rollouts: Sequence[RolloutStatus | None]) -> list[RenderableType]:
    """Return the rollouts that a command goes to."""
    rows = table("CLUSTER", "=STAGE", ">PROMISED", ">TEAMS", "~NEEDS")
    for cluster, status in zip(clusters, rollouts, strict=True):
        if status is None:
            row(rows, cluster, "no answer", None, None, None)
        else:
            row(
                rows,
                cluster,
                status.stage,
                status.assigned_gpus,
                sum(t.leaf for t in status.teams),
                status.needs or None,
            )
    statuses = [status for status in rollouts if status is not None]
    teams = {t.team for status in statuses for t in status.teams if t.leaf}
    promised = gpus(sum(status.assigned_gpus for status in statuses))
    sentence = f"{count(len(clusters), 'cluster')}, {promised} promised to {count(len(teams), 'team')}."
    return [rows, Text(), line(sentence)]
