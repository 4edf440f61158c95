"""Windows that are declared beside those of fleet files."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activities.adapters.ledger import Ledger
from models.calendar import Declared, Entry
from models.errors import BadInput, Refusal
from models.fleet import Window, WindowKind
from tests.integration.ledger.world import CLUSTER, NOW, ForeignTool, fleet, import_fleet

DAY = timedelta(days=1)


def window(starts: timedelta = timedelta(0), ends: timedelta = DAY, **more: Any) -> Window:
    given: dict[str, Any] = {"kind": WindowKind.SEV, "reason": "cooling", "islands": ("X",), "gpus": 20} | more
    return Window(starts=NOW + starts, ends=NOW + ends, **given)


def declared(source: str, *windows: Window, cluster: str = CLUSTER) -> Declared:
    return Declared(source=source, windows=tuple((cluster, w) for w in windows))


def shown(ledger: Ledger, cluster: str = "") -> list[tuple[str, str, str]]:
    return [(e.cluster, e.window.reason, e.source) for e in ledger.fleet.calendar(cluster, NOW)]


def test_what_is_declared_stands_with_who_declared_it(ledger: Ledger) -> None:
    ledger.fleet.declare([declared("hold 1", window())], "tpm")
    (made,) = ledger.fleet.declare([declared("hold 1", window())], "tpm")  # again, as a retry does
    assert made == Entry(id=made.id, cluster=CLUSTER, window=window(), source="hold 1", declared_by="tpm")
    assert window() in ledger.calendar.windows([CLUSTER])[CLUSTER]
    assert shown(ledger) == [(CLUSTER, "cooling", "hold 1"), (CLUSTER, "switches", "")]
    assert shown(ledger, "beta") == []


def test_a_source_takes_back_what_it_declared_elsewhere_too(ledger: Ledger) -> None:
    ledger.fleet.declare([declared("ics 1", window(), window(DAY, 2 * DAY)), declared("ics 2", window())], "tpm")
    ledger.fleet.declare([declared("ics 1", window(islands=None, reason="moved"), cluster="beta")], "tpm")
    assert shown(ledger) == [
        (CLUSTER, "cooling", "ics 2"),
        (CLUSTER, "switches", ""),
        ("beta", "moved", "ics 1"),
    ]
    ledger.fleet.declare([Declared(source="ics 1"), Declared(source="ics 2")], "tpm")
    assert shown(ledger) == [(CLUSTER, "switches", "")]


def test_a_fleet_file_leaves_alone_what_others_declared(ledger: Ledger) -> None:
    ledger.fleet.declare([declared("hold 1", window())], "tpm")
    document = fleet()
    document["clusters"][0]["windows"] = []
    import_fleet(ledger, document, "second")
    assert shown(ledger) == [(CLUSTER, "cooling", "hold 1")]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (declared("hold 2", window(), cluster="gamma"), "the ledger has no cluster 'gamma'"),
        (declared("hold 2", window(islands=("Q",))), "cluster 'alpha' has no island 'Q'"),
        (declared("hold 2", window(), cluster="beta"), "cluster 'beta' has no island 'X'"),
    ],
)
def test_of_a_bad_declaration_nothing_stands(ledger: Ledger, bad: Declared, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ledger.fleet.declare([declared("hold 1", window()), bad], "tpm")
    assert shown(ledger) == [(CLUSTER, "switches", "")]


def test_a_window_is_ended_or_taken_back(ledger: Ledger) -> None:
    begun, ahead = ledger.fleet.declare([declared("hold 1", window(-DAY), window(DAY, 2 * DAY))], "tpm")
    ended = ledger.fleet.end_window(CLUSTER, begun.id, NOW)
    assert ended.window.ends == NOW
    assert ledger.fleet.end_window(CLUSTER, begun.id, NOW + DAY) == ended
    assert ledger.fleet.end_window(CLUSTER, ahead.id, NOW) == ahead
    assert shown(ledger) == [(CLUSTER, "switches", "")]
    assert ledger.calendar.windows([CLUSTER])[CLUSTER][0].ends == NOW
    for cluster, number in ((CLUSTER, ahead.id), ("beta", begun.id), ("gamma", 1)):
        with pytest.raises(Refusal, match=f"has no window {number}"):
            ledger.fleet.end_window(cluster, number, NOW)


def test_an_older_ledger_keeps_its_windows(ledger: Ledger, tool: ForeignTool) -> None:
    """As another tool writes them, which knows nothing of sources."""
    tool.run(
        "INSERT INTO windows (cluster, kind, starts, ends, reason) SELECT cluster, 'freeze', starts, ends, 'holidays' "
        "FROM windows"
    )
    assert sorted(shown(ledger)) == [(CLUSTER, "holidays", ""), (CLUSTER, "switches", "")]


def test_the_calendar_of_an_unknown_cluster_is_refused(ledger: Ledger) -> None:
    with pytest.raises(BadInput, match="the ledger has no cluster 'gamma'"):
        ledger.fleet.calendar("gamma", NOW)
