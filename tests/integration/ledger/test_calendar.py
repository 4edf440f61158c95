"""Windows that are declared beside those of fleet files."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.adapters.ledger.facade import Ledger
from benchmarks.console_fleet import desk_on
from models.audit_chain import AuditEntry, Deed, Signature
from models.cluster.windows import Declaration, Declared, Entry, Window, WindowKind
from models.errors import BadInput, Refusal
from models.question_base import Question
from models.questions import DeskRequest, EndHold, EndWindow
from tests.integration.ledger.world import CLUSTER, NOW, ForeignTool, fleet, import_fleet, twice

DAY = timedelta(days=1)


def window(starts: timedelta = timedelta(0), ends: timedelta = DAY, **more: Any) -> Window:
    given: dict[str, Any] = {"kind": WindowKind.SEV, "reason": "cooling", "islands": ("X",), "gpus": 20} | more
    return Window(starts=NOW + starts, ends=NOW + ends, **given)


def declared(source: str, *windows: Window, cluster: str = CLUSTER) -> Declared:
    return Declared(source=source, windows=tuple((cluster, w) for w in windows))


def deed(key: str) -> Deed[Entry]:
    """Somebody's at the desk; the same key is the same one."""

    def entry(ended: Entry) -> AuditEntry:
        data = ended.model_dump(mode="json", exclude={"cluster"})
        return Signature("tpm", NOW, f"desk/{key}").entry(ended.cluster, "ended", data, f"/{ended.id}")

    return Deed(f"desk/{key}", entry)


def shown(ledger: Ledger, cluster: str = "") -> list[tuple[str, str, str]]:
    return [(e.cluster, e.window.reason, e.source) for e in ledger.fleet.calendar(cluster, NOW)]


def declare(ledger: Ledger, *declared: Declared, now: datetime = NOW) -> Declaration:
    return ledger.fleet.declare(declared, "tpm", now)


def test_what_is_declared_stands_with_who_declared_it(ledger: Ledger) -> None:
    what = declared("hold 1", window(islands=("Y", "X")))
    (made,) = declare(ledger, what).new
    tidy = window(islands=("X", "Y"))
    assert made == Entry(id=made.id, cluster=CLUSTER, window=tidy, source="hold 1", declared_by="tpm")
    assert declare(ledger, what) == Declaration(stand=(made,), new=(), gone=())
    assert tidy in ledger.calendar.windows([CLUSTER])[CLUSTER]
    assert shown(ledger) == [(CLUSTER, "cooling", "hold 1"), (CLUSTER, "switches", "")]
    assert shown(ledger, "beta") == []


def test_a_source_takes_back_what_it_declared_elsewhere_too(ledger: Ledger) -> None:
    first = declare(ledger, declared("ics 1", window(), window(DAY, 2 * DAY)), declared("ics 2", window()))
    moved = declare(ledger, declared("ics 1", window(islands=None, reason="moved"), cluster="beta"))
    assert [e.id for e in moved.gone] == [e.id for e in first.stand if e.source == "ics 1"]
    assert shown(ledger) == [
        (CLUSTER, "cooling", "ics 2"),
        (CLUSTER, "switches", ""),
        ("beta", "moved", "ics 1"),
    ]
    gone = declare(ledger, Declared(source="ics 1"), Declared(source="ics 2")).gone
    assert {e.source for e in gone} == {"ics 1", "ics 2"}
    assert shown(ledger) == [(CLUSTER, "switches", "")]


def test_what_has_begun_is_cut_short_and_what_is_over_stays(ledger: Ledger) -> None:
    over, begun, ahead = window(-3 * DAY, -2 * DAY), window(-DAY), window(2 * DAY, 3 * DAY)
    declare(ledger, declared("ics 1", over, begun, ahead), now=NOW - 4 * DAY)
    assert len(declare(ledger, declared("ics 1", ahead)).gone) == 1
    left = [w for w in ledger.calendar.windows([CLUSTER])[CLUSTER] if w.reason == "cooling"]
    assert left == [over, begun.model_copy(update={"ends": NOW}), ahead]


def test_a_fleet_file_leaves_alone_what_others_declared(ledger: Ledger) -> None:
    declare(ledger, declared("hold 1", window()))
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
        (declared("hold 2", window(gpus=201)), "cluster 'alpha' has 200 GPUs in X: a window cannot take 201"),
        (declared("hold 2", window(gpus=401, islands=None)), "cluster 'alpha' has 400 GPUs: a window cannot take 401"),
    ],
)
def test_of_a_bad_declaration_nothing_stands(ledger: Ledger, bad: Declared, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        declare(ledger, declared("hold 1", window()), bad)
    assert shown(ledger) == [(CLUSTER, "switches", "")]


def test_a_window_is_ended_or_taken_back(ledger: Ledger) -> None:
    begun, ahead = declare(ledger, declared("hold 1", window(-DAY), window(DAY, 2 * DAY))).stand
    ended = ledger.fleet.end_window(CLUSTER, begun.id, NOW, deed("1"))
    assert ended.window.ends == NOW
    assert ledger.fleet.end_window(CLUSTER, begun.id, NOW + DAY, deed("2")) == ended
    assert ledger.fleet.end_window(CLUSTER, ahead.id, NOW, deed("3")) == ahead
    assert shown(ledger) == [(CLUSTER, "switches", "")]
    assert ledger.calendar.windows([CLUSTER])[CLUSTER][0].ends == NOW
    for cluster, number in ((CLUSTER, ahead.id), ("beta", begun.id), ("gamma", 1)):
        with pytest.raises(Refusal, match=f"has no window {number}"):
            ledger.fleet.end_window(cluster, number, NOW, deed("4"))


def test_an_end_whose_answer_was_lost_is_answered_alike_and_archived_once(ledger: Ledger, tool: ForeignTool) -> None:
    """This includes windows that had not begun, which leave no row. The desk is asked again under the same request."""
    years = 3650 * DAY
    (ahead,) = declare(ledger, declared("hold 1", window(years, 2 * years))).stand
    live = (("alpha", window(-DAY, years)), ("beta", window(years, 2 * years, islands=None)))
    begun, other = declare(ledger, Declared(source="hold 2", windows=live)).stand
    desk = desk_on(ledger)

    def ask(question: Question[Any], request: str) -> Any:
        asked = ActivityEnvironment()
        asked.info = replace(asked.info, workflow_id=request)
        wanted = DeskRequest(kind=question.kind, actor="tpm", arguments=question.model_dump(mode="json"))
        return question.answers().validate_python(asked.run(desk.answer, wanted).result)

    end, release = EndWindow(cluster=CLUSTER, number=ahead.id), EndHold(source="hold 2", clusters=("alpha", "beta"))
    assert twice(lambda: ask(end, "desk/1")) == ahead
    cut, gone = twice(lambda: ask(release, "desk/2"))
    assert (cut.id, gone) == (begun.id, other)
    assert tool.one("SELECT ends FROM windows WHERE id = ?", begun.id) is not None
    assert tool.rows("SELECT id FROM windows WHERE id IN (?, ?)", ahead.id, other.id) == []
    rows = tool.rows("SELECT cluster, key FROM audit WHERE key LIKE ? ORDER BY key", "desk/%")
    assert rows == [("alpha", "desk/1"), ("alpha", f"desk/2/{begun.id}"), ("beta", f"desk/2/{other.id}")]
    with pytest.raises(ApplicationError, match=f"has no window {ahead.id}"):
        ask(end, "desk/3")


def test_a_hold_of_several_clusters_is_ended_as_one(ledger: Ledger, tool: ForeignTool) -> None:
    """Windows that have begun are cut short in each cluster, later ones are removed, and other people's stay."""
    live = (("alpha", window(-DAY)), ("beta", window(-DAY, islands=None)), ("beta", window(DAY, 2 * DAY, islands=None)))
    declare(ledger, Declared(source="hold 1", windows=live), declared("hold 2", window(-DAY)))
    ended = ledger.fleet.end_hold("hold 1", ["alpha", "beta"], NOW, deed("1"))
    assert [(e.cluster, e.window.ends) for e in ended if e.window.starts < NOW] == [("alpha", NOW), ("beta", NOW)]
    left = tool.rows("SELECT cluster, source, ends FROM windows WHERE source <> '' ORDER BY source, cluster")
    assert [row[:2] for row in left] == [("alpha", "hold 1"), ("beta", "hold 1"), ("alpha", "hold 2")]
    assert [row[2] == left[0][2] for row in left] == [True, True, False]
    assert ledger.fleet.end_hold("hold 1", ["alpha", "beta"], NOW + DAY, deed("2")) == (), "again changes nothing"


def test_a_hold_of_every_cluster_holds_those_that_are_imported_later(ledger: Ledger, tool: ForeignTool) -> None:
    whole = (("alpha", window(-DAY, islands=None)), ("beta", window(-DAY, islands=None)))
    over = (("alpha", window(-3 * DAY, -2 * DAY)),)
    declare(ledger, Declared(source="fleet hold 1", windows=whole), Declared(source="fleet hold 2", windows=over))
    declare(ledger, declared("hold 3", window(-DAY)))
    document = fleet()
    document["clusters"].append({**document["clusters"][1], "name": "gamma", "windows": []})
    import_fleet(ledger, document, "second")
    import_fleet(ledger, document, "third")
    rows = tool.rows("SELECT source FROM windows WHERE cluster = 'gamma'")
    assert [row[0] for row in rows] == ["fleet hold 1"]
    assert {e.cluster for e in ledger.fleet.end_hold("fleet hold 1", ["alpha", "beta", "gamma"], NOW, deed("3"))} == {
        *("alpha", "beta", "gamma")
    }


def test_an_older_ledger_keeps_its_windows(ledger: Ledger, tool: ForeignTool) -> None:
    """Another tool writes the windows, which knows nothing of sources."""
    tool.run(
        "INSERT INTO windows (cluster, kind, starts, ends, reason) SELECT cluster, 'freeze', starts, ends, 'holidays' "
        "FROM windows"
    )
    assert sorted(shown(ledger)) == [(CLUSTER, "holidays", ""), (CLUSTER, "switches", "")]


def test_the_calendar_of_an_unknown_cluster_is_refused(ledger: Ledger) -> None:
    with pytest.raises(BadInput, match="the ledger has no cluster 'gamma'"):
        ledger.fleet.calendar("gamma", NOW)
