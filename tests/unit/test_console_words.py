"""Words of the console: what a button is called, how much a picture tells of, and what is said once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.access.second_persons import Waiting
from models.cluster.windows import Entry, Window, WindowKind
from models.questions import ArchivePage, EndWindow
from models.reports.tallies import Point
from models.rollout.status_models import Condition
from models.seals import SealedTo
from views.calendar import calendar_parts
from views.countersign import whole_parts
from views.status import shorten_condition
from views.words import DECORATION, gpus, line, row, table
from web.console.pages.calendar import calendar
from web.console.pages.fleet import deed_of
from web.console.pages.gpu_curves import burn_down_of, curve_of
from web.console.rendering import page
from web.console.views_html import markup, sentence
from web.console.visit import Visit

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("needs", "label", "path"),
    [
        ("approve the plan: backstop approve c --plan 0123", "Approve...", "/clusters/c/approve"),
        ("paused by user:ana: backstop resume c", "Resume...", "/clusters/c/resume"),
        ("held (breach: a run): backstop resolve c --hold x --reason ...", "Resolve...", "/clusters/c/resolve"),
        ("told twice: backstop ack c --team a", "Acknowledge...", "/clusters/c/ack"),
        # What is to be weighed or mended first is looked at.
        (
            "a lack: mend the source; if its figures are right, confirm them: backstop resolve c --hold x",
            "Look...",
            "/clusters/c#do",
        ),
        ("rolled back: backstop retry c, or backstop close c", "Look...", "/clusters/c#do"),
        ("new: backstop approve c --plan 1, or decline it: backstop resolve c --hold p", "Look...", "/clusters/c#do"),
        ("no health is known: mend the health source", "Look...", "/clusters/c#do"),
    ],
)
def test_what_to_do_next_names_the_deed(needs: str, label: str, path: str) -> None:
    assert deed_of("c", needs) == (label, path)


def point(at: datetime) -> Point:
    names = ("total_gpus", "healthy_gpus", "promised_gpus", "phantom_gpus", "flex_gpus")
    unknown = {"pending_gpus": None, "lacking_gpus": None}
    return Point.model_validate(
        {"at": at, "clusters": 1, "known": 1, "asking": 0, **unknown, **dict.fromkeys(names, 8)}
    )


@pytest.mark.parametrize(
    ("back", "over"), [(timedelta(days=28), "28 days"), (timedelta(hours=30), "1 day"), (timedelta(hours=2), "2 hours")]
)
def test_a_picture_says_how_much_there_is(back: timedelta, over: str) -> None:
    points = [point(NOW - back), point(NOW)]
    for curve in (curve_of(points), burn_down_of(points)):
        assert curve is not None
        assert curve["over"] == over


@pytest.mark.parametrize(
    ("cell", "shown"),
    [("980", "980"), ("1024", "1,024"), ("1024/1024", "1,024/1,024"), ("at most 2352", "at most 2,352"), ("-", "-")],
)
def test_counts_look_the_same_in_tables_and_sentences(cell: str, shown: str) -> None:
    rows = table("CLUSTER", ">HEALTHY", ">ID")
    row(rows, "h100-1024", cell, 1024)
    made = str(markup([rows]))
    assert f">{shown}<" in made
    assert ">h100-1024<" in made, "a name stays as it is"
    assert ">1024<" in made, "and so does a number that names something"
    assert "1,024 GPUs" in str(markup([line(gpus(1024))]))


def test_the_fleet_rollout_among_clusters_leads_to_its_own_page() -> None:
    rows = table("CLUSTER", "=STAGE")
    row(rows, "(fleet)", "running")
    row(rows, "h100-1", "planned")
    made = str(markup([rows]))
    assert '<a href="/rollout">(fleet)</a>' in made
    assert '<a href="/clusters/h100-1">h100-1</a>' in made


def test_a_bar_beside_its_numbers_is_for_the_eye_alone() -> None:
    made = sentence(line("4 to 12 GPUs: ", ("|▁█|", DECORATION)))
    assert made == '4 to 12 GPUs: <span class="bars" aria-hidden="true">|▁█|</span>'


@pytest.mark.parametrize(
    ("source", "shown"),
    [("hold 1", '<td class="prose">a, b, c and 1 more</td>'), ("fleet file", '<a href="/clusters/a">a</a>')],
)
def test_the_clusters_of_one_window_are_no_name_that_leads_somewhere(source: str, shown: str) -> None:
    """They wrap as prose does: three names in one line were wider than a screen."""
    window = Window(
        kind=WindowKind.FREEZE, starts=NOW + timedelta(hours=1), ends=NOW + timedelta(hours=4), reason="year end"
    )
    entries = [Entry(id=n, cluster=c, window=window, source=source, declared_by="tpm") for n, c in enumerate("abcd", 1)]
    made = markup(calendar_parts(entries, (), {}, NOW))
    assert shown in made
    assert 'href="/clusters/a%2C' not in made


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("nothing is promised yet; `abort` ends the rollout", "nothing is promised yet; <b>abort</b> ends the rollout"),
        ("see `backstop status c`, then `retry`", 'see <a href="/clusters/c">c</a>, then <b>retry</b>'),
        ("of `<i>x</i>` and `two words`", "of `&lt;i&gt;x&lt;/i&gt;` and `two words`"),
    ],
)
def test_no_backquote_of_ours_is_left_around_the_name_of_a_button(text: str, html: str) -> None:
    assert sentence(line(text)) == html


def test_a_command_that_is_needed_stands_once() -> None:
    waits = Condition(name="approval", met=False, text="waits for approval: backstop approve c --plan 0123")
    assert shorten_condition(waits, "approve the plan: backstop approve c --plan 0123") == "approval"
    assert shorten_condition(waits, "") == "approval: backstop approve c --plan 0123"


def test_a_column_without_a_word_in_it_has_no_heading_either() -> None:
    rows = table("CLUSTER", ">CUT", "NOTE")
    row(rows, "h100", "8", "")
    row(rows, "a100", "0", "")
    assert "Note" not in markup([rows])
    assert ">Cut</th>" in markup([rows])
    row(rows, "h200", "0", "short by 3")
    assert ">Note</th>" in markup([rows])
    assert ">Note</th>" in markup([table("CLUSTER", "NOTE")]), "an empty table keeps its headings"


def test_a_sentence_that_begins_large_leaves_names_as_they_are() -> None:
    values = {"title": "x", "detail": "the ledger has no cluster 'H100-East'", "who": "", "here": "/", "navigation": ()}
    shown = bytes(page("failure.html", {**values, "how": "", "form_token": "", "said": ()}).body).decode()
    assert "The ledger has no cluster &#39;H100-East&#39;." in shown


def test_what_was_done_and_what_was_refused_name_pages_and_no_commands() -> None:
    around = {"title": "x", "who": "", "how": "", "here": "/", "navigation": (), "form_token": "", "once": ""}
    said = ("paused. Undo: backstop resume h1",)
    values = {**around, "said": said, "cluster": "h1", "why_not": "", "owner": "", "reason": "", "shadow": False}
    failed = "a rollout of h1 is open already: see `backstop status h1`"
    shown = bytes(page("launch_one.html", {**values, "failed": failed}).body).decode()
    assert '<p>paused. Undo: <a href="/clusters/h1/resume">Resume</a></p>' in shown
    assert 'a rollout of h1 is open already: see <a href="/clusters/h1">h1</a></p>' in shown


@pytest.mark.parametrize(("row_number", "seal"), [(1, 1), (2, 1), (3, 2), (5, 2), (6, None)])
def test_a_row_is_sealed_by_the_first_seal_that_covers_it(row_number: int, seal: int | None) -> None:
    seals = (SealedTo(number=3, at=NOW, length=5), SealedTo(number=2, at=NOW, length=5))
    sealed = ArchivePage(rows=(), head=None, seals=(*seals, SealedTo(number=1, at=NOW, length=2)))
    assert sealed.seal_of(row_number) == seal


def test_a_command_that_lists_the_rest_is_a_link_to_the_page_that_lists_it() -> None:
    assert markup([line("and 90 more: backstop fleet status --all")]) == (
        '<p>and 90 more: <a href="/rollout?show=all">show them</a></p>'
    )
    assert 'see <a href="/rollout">the fleet rollout</a>' in markup([line("see backstop fleet status")])


@pytest.mark.parametrize(
    ("typed", "html"),
    [
        ("backstop approve h1 --plan 0123", '<a href="/clusters/h1/approve">Approve the plan</a>'),
        ("backstop ack 'a b' --team t", '<a href="/clusters/a%20b/ack">Acknowledge</a>'),
        ("backstop ack 'a'\"'\"'b' --team t", '<a href="/clusters/a%27b/ack">Acknowledge</a>'),
        ("backstop fleet skip h1 --reason ...", '<a href="/rollout/skip">Skip clusters</a>'),
        ("backstop request approve q-1 --reason '...'", '<a href="/requests/q-1">Approve</a>'),
        ("backstop status --at-risk", '<a href="/?show=risk">show them</a>'),
        ("backstop status h1", '<a href="/clusters/h1">h1</a>'),
        ("backstop request list", '<a href="/requests">the requests</a>'),
        ("backstop approve ../../x", '<a href="/clusters/..%2F..%2Fx/approve">Approve the plan</a>'),
        ("backstop approve H100-A --plan 0123", '<a href="/clusters/H100-A/approve">Approve the plan</a>'),
        ("backstop approve CLUSTER", "<code>backstop approve CLUSTER</code>"),
        ("backstop audit h1 --verify", "<code>backstop audit h1 --verify</code>"),
        ("backstop fleet import FILE", "<code>backstop fleet import FILE</code>"),
        ("backstop approve --help", "<code>backstop approve --help</code>"),
    ],
)
def test_a_command_that_has_a_page_is_a_link_to_it(typed: str, html: str) -> None:
    """Readers of pages have no terminal: what they are told to do is a click away."""
    assert sentence(line(f"do this: {typed}")) == f"do this: {html}"


def test_what_a_sentence_has_just_said_is_the_link() -> None:
    html = sentence(line("Needs you: approve the plan: backstop approve h1 --plan 0123"))
    assert html == 'Needs you: <a href="/clusters/h1/approve">approve the plan</a>'


def test_a_waiting_command_is_shown_in_words() -> None:
    entry = {"cluster": "new", "total_gpus": 8, "nodes": [{"gpu_model": "H100"}], "values": {}}
    message = {"kind": "add", "actor": "user:tpm", "arguments": {"entry": entry}, "max_failed": 0.1, "undo": True}
    waiting = Waiting(
        hash="b8" * 16, command="bringup.add", what="begin", by="user:tpm", at=NOW, until=NOW, message=message
    )
    words = [str(text) for text in whole_parts(waiting)]
    assert words[1:-1] == [
        "  Entry, cluster: new",
        "  Entry, total GPUs: 8",
        "  Entry, nodes 1, GPU model: H100",
        "  Largest share of clusters that may be rolled back before the fleet rollout stops: 0.1",
        "  Also undo what it has done: yes",
    ]


@pytest.mark.parametrize(("begins", "said"), [(-1, "is over"), (1, "is taken back")])
def test_a_window_that_has_not_begun_is_taken_back(begins: int, said: str) -> None:
    starts = NOW + timedelta(hours=begins)
    window = Window(kind=WindowKind.SEV, starts=starts, ends=starts + timedelta(hours=2), reason="fabric")
    entry = Entry(id=7, cluster="c", window=window, source="hold 1", declared_by="tpm")
    told = list[str]()

    async def ask(question: Any) -> Any:
        return entry if isinstance(question, EndWindow) else (entry,)

    for which, what in (("7 c", "Window 7 of c"), ("hold 1", "Hold 1 of 1 cluster")):
        form = {"window": which, "reason": "done"}
        visit = SimpleNamespace(path=("calendar",), query={}, form=form, now=NOW, ask=ask)
        visit.without_form, visit.add_sentence = visit, told.append
        asyncio.run(calendar(cast("Visit", visit)))
        assert told.pop() == f"{what} {said}."
