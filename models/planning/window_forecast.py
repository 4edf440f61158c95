"""A forecast of what declared windows will do to quotas before they begin.

Capacity in maintenance is planned absence: it is not healthy while that lasts. It causes no breach
(models/rollout/guard.py), but the team of a quota that loses its backing must be notified in time. Source:
docs/design.md, "Guard and rollback".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot, with_named_islands
from models.cluster.windows import Foretold, Window, WindowKind, active, covered_gpus, without_absences
from models.planning.backing import back


def forecast_windows(
    cluster: str, quotas: Sequence[Quota], islands: Sequence[Island], windows: Sequence[Window], now: datetime
) -> tuple[Foretold, ...]:
    """Return what the coming windows will take from these quotas if health stays otherwise, the next one first.

    Islands absent now by a window that will be over count as back. Where a window takes a number of GPUs from several
    islands, the first ones by name give them. Quotas that lack as much before it begins are left out: what another
    window takes already is not lost again.
    """
    takes = [window for window in windows if window.kind is not WindowKind.FREEZE]
    coming = sorted((w for w in takes if w.starts > now), key=lambda w: (w.starts, w.kind, w.reason))
    if not coming:
        return ()
    islands = with_named_islands(quotas, islands)
    whole = without_absences(islands, windows, now)
    shortages = dict[tuple[Island, ...], dict[str, int]]()

    def lacks_during(taking: Sequence[Window]) -> dict[str, int]:
        left = islands_during(whole, taking)
        if left not in shortages:
            shortages[left] = _shortage(cluster, quotas, left)
        return shortages[left]

    begun, forecast = [w for w in takes if w.starts <= now], list[Foretold]()
    for window in coming:
        before = lacks_during(active(begun, window.starts))
        begun.append(window)
        after, lacks = lacks_during(active(begun, window.starts)), lacks_during(active(takes, window.starts))
        loses = {team: gpus - before.get(team, 0) for team, gpus in after.items() if gpus > before.get(team, 0)}
        if loses:
            forecast.append(
                Foretold(
                    kind=window.kind,
                    starts=window.starts,
                    ends=window.ends,
                    reason=window.reason,
                    loses=loses,
                    lacks={team: lacks.get(team, after[team]) for team in loses},
                )
            )
    return tuple(forecast)


def islands_during(islands: Sequence[Island], windows: Sequence[Window]) -> tuple[Island, ...]:
    """Return the islands as they are while these windows last."""
    left = {island.name: island.healthy_gpus for island in islands}
    for window in windows:
        for name, gone in covered_gpus(window, left).items():
            left[name] -= gone
    return tuple(
        island if left[island.name] == island.healthy_gpus else island.at_health(left[island.name])
        for island in islands
    )


def _shortage(cluster: str, quotas: Sequence[Quota], islands: tuple[Island, ...]) -> dict[str, int]:
    return dict(back(Snapshot(cluster=cluster, islands=islands, quotas=tuple(quotas))).shortage)
