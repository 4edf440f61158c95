"""The console's pages: what they say agrees with plain SQL, and a form does what it says.

Names and reasons are hostile all over: nothing that people wrote becomes markup, and every link leads back to its name.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio
from temporalio.client import Client

from models.access_questions import ImportAccess
from models.cluster.fleet_file import Fleet
from models.cluster.windows import Declared, Window, WindowKind
from models.errors import AwaitsSecond
from models.questions import Declare
from models.rollout.stages import Command, Stage
from tests.e2e.console_world import Browser, console_of, known, somebody
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.world import World, cluster, eventually, fresh, team, world_of
from tests.unit.access_world import access, grant

STILL = {"soak_buffered": "1h", "soak_enforced": "1h", "notice": "1h", "owners": ["user:ana"]}
TEAM = "re/search <script>alert(1)</script> \"'&"
EVIL = "</td><script>alert('x')</script><img src=x onerror=alert(2)> \" '"
PEOPLE = ("tpm", "sre-lead", "hw-lead")
_keys = (f"once-{number}" for number in range(10_000))


def key() -> str:
    return next(_keys)


def path(*names: str) -> str:
    return "/" + "/".join(quote(name, safe="") for name in names)


@pytest_asyncio.fixture(loop_scope="function")
async def ana(world: World) -> AsyncIterator[Browser]:
    async with console_of(world) as place:
        browser = Browser(place, somebody("user:ana"))
        async with browser.http:
            yield browser


class Story:
    """Two clusters with hostile names: one with a rollout that is held, one with room for more."""

    def __init__(self) -> None:
        self.worked = fresh("h100/<b onload=x>'\"&?#")
        self.roomy = fresh("h200 <script>")


@pytest_asyncio.fixture(loop_scope="function")
async def story(world: World) -> Story:
    found = Story()
    worked = cluster(found.worked, {"main": (361, 319)}, [team(TEAM, 345, busy=310)], **STILL)
    quotas = [team(TEAM, 100, busy=60, idle_gpus=20), team("evals", 40)]
    roomy = cluster(found.roomy, {"ma<i>n": (512, 504)}, quotas, **STILL)
    worked["gpu_model"] = roomy["gpu_model"] = "H<em>100"
    for one in (worked, roomy):
        for quota in one["quotas"]:
            quota.setdefault("idle_gpus", 0)
    await world.fleet(worked, roomy)
    await world.launch(found.worked)
    await world.until(found.worked, Stage.PLANNED)
    await world.listed(found.worked)
    starts = world.now().replace(microsecond=0) + timedelta(days=2)
    window = Window(kind=WindowKind.MAINTENANCE, starts=starts, ends=starts + timedelta(hours=4), reason=EVIL)
    await world.tpm.ask(Declare(declared=(Declared(source="hold 1", windows=((found.roomy, window),)),)))
    return found


def pages(story: Story) -> Iterator[str]:
    yield from ("/", "/teams", "/flex", "/requests", "/calendar", "/audit", "/access", "/leader", "/leader?buffer=10")
    yield from ("/rollout", "/launch")
    yield from (path("teams", TEAM), path("teams", TEAM, "ask"), "/teams?name=search", "/flex?block=8&model=H100")
    yield from (path("teams", TEAM, "object", story.worked), path("teams", TEAM, "ack", story.worked))
    for name in (story.worked, story.roomy):
        yield from (path("clusters", name), path("flex", name), f"/calendar?cluster={quote(name, safe='')}")
        yield f"/audit?cluster={quote(name, safe='')}&kind=command&since=1d&refused=none&actor=user:*"
    yield from (f"/flex?model={quote(EVIL)}", f"/audit?actor={quote(EVIL)}", f"/teams?name={quote(EVIL)}")


# --- looking --------------------------------------------------------------------------------------


async def test_every_page_answers_and_nothing_written_becomes_markup(ana: Browser, story: Story, world: World) -> None:
    await world.say(story.worked, Command.OBJECT, "user:ana", team=TEAM, reason=EVIL)
    for where in pages(story):
        await ana.look(where)
    seen = await ana.look(path("clusters", story.worked))
    assert EVIL in seen.words
    assert path("teams", TEAM) in (await ana.look("/teams")).links


async def test_a_team_sees_what_the_ledger_has(ana: Browser, story: Story, world: World) -> None:
    listed = (await ana.look("/teams")).column("Teams", "Promised GPUs")
    for name, gpus in world.sql.rows("SELECT team, sum(gpus) FROM quotas GROUP BY team"):
        assert listed[name] == str(gpus)
    seen = await ana.look(path("teams", TEAM))
    promised = {c: str(gpus) for c, gpus in world.sql.rows("SELECT cluster, gpus FROM quotas WHERE team = ?", TEAM)}
    assert promised == {story.worked: "345", story.roomy: "100"}
    assert seen.column("Quotas", "Promised") == promised
    used = "SELECT cluster, scheduled_gpus, idle_gpus FROM usage_samples WHERE team = ?"
    rows = world.sql.rows(used, TEAM)
    assert seen.column("Quotas", "Used") == {c: str(gpus) for c, gpus, _ in rows}
    assert {c: text.split()[0] for c, text in seen.column("Quotas", "Idle").items()} == {c: str(i) for c, _, i in rows}
    # 361 GPUs, 319 of them healthy, one quota of 345 alone; and 140 promised on 504.
    assert seen.column("Quotas", "Backed") == {story.worked: "319", story.roomy: "100"}
    # What runs holds 310 of it: of 319 healthy ones 9 are left for what is not held.
    assert seen.column("Quotas", "Could start") == {story.worked: "9", story.roomy: "40"}
    assert seen.column("Quotas", "Short") == {story.worked: str(345 - 310 - 9), story.roomy: str(100 - 60 - 40)}
    assert "its jobs hold 370 of these, 20 of them idle; 49 more could start now, and 26 are short." in seen.words
    assert "The quota is 345 now; the plan has 306." in seen.words, "85 % of 361, rounded down"
    nobody = await ana.look("/teams/nobody")
    assert "No cluster in the ledger has a quota of team 'nobody'." in nobody.words


async def test_flex_is_what_hardware_and_quotas_leave(ana: Browser, story: Story) -> None:
    seen = await ana.look("/flex")
    # Roomy: 504 healthy, 140 promised, 40 of that not held; worked: 319 healthy, all behind 345, 310 held.
    assert seen.column("Free now", "Free") == {story.worked: "9", story.roomy: str(504 - 140 + 40)}
    few = await ana.look("/flex?block=64")
    assert set(few.column("Free now", "Free")) == {story.roomy}
    assert "None of 2 clusters" in (await ana.look("/flex?model=A100")).words
    wrong = await ana.look("/flex?block=many", 400)
    assert "The least block must be a whole number" in wrong.words


async def test_the_calendar_has_what_the_ledger_has_and_ends_a_window(ana: Browser, story: Story, world: World) -> None:
    ((number, name, reason, ends),) = world.sql.rows("SELECT id, cluster, reason, ends FROM windows")
    seen = await ana.look("/calendar")
    assert seen.column("Declared windows", "Id") == {name: str(number)}
    assert seen.column("Declared windows", "Reason") == {name: reason}
    assert "lose their backing" in seen.words, "all of its GPUs are gone then"
    refused = await ana.refused("/calendar", key(), window=f"{number} {name}", reason=" ")
    assert "ending a window needs a reason" in refused.words
    assert world.sql.one("SELECT ends FROM windows") == ends
    done = await ana.given("/calendar", key(), window=f"{number} {name}", reason="not now")
    assert f"Window {number} of {name} is taken back." in done.words, "it had not begun"
    assert "No window is declared" in done.words
    refused = await ana.refused("/calendar", key(), window=f"{number + 7} {name}", reason="not now")
    assert "Backstop refused this" in refused.words


async def test_a_hold_of_several_clusters_ends_as_one(ana: Browser, story: Story, world: World) -> None:
    """Each cluster here had a window of its own once, to be ended one by one."""
    starts = world.now().replace(microsecond=0) - timedelta(hours=1)
    freeze = Window(kind=WindowKind.FREEZE, starts=starts, ends=starts + timedelta(days=9), reason="year end")
    source, names = "fleet hold 3f2a91c07b5e", sorted((story.worked, story.roomy))
    await world.tpm.ask(Declare(declared=(Declared(source=source, windows=tuple((n, freeze) for n in names)),)))
    others = world.sql.rows("SELECT * FROM windows WHERE source != ?", source)
    options = re.compile(r'<option value="([^"]*)"[^>]*>([^<]*)<')
    every = dict(options.findall((await ana.http.get("/calendar")).text))
    assert len(every) == 2
    assert re.fullmatch(r"3f2a91c07b5e, [^,]+: freeze of every cluster \(2\)", every[source])
    for address in ("/calendar", "/leader"):
        links = {link for link in (await ana.look(address)).links if link.startswith("/clusters/")}
        pages = {"/".join(link.split("/")[:3]) for link in links}  # a command's page is its cluster's
        assert pages <= {path("clusters", name) for name in names}, "several clusters have no page together"
    one = dict(options.findall((await ana.http.get(f"/calendar?cluster={quote(story.roomy, safe='')}")).text))
    assert (len(one), source in one) == (2, False), "its own windows, by themselves"
    done = await ana.given("/calendar", key(), window=source, reason="the year has ended")
    assert "Hold 3f2a91c07b5e of 2 clusters is over." in done.words
    over = world.sql.rows("SELECT cluster FROM windows WHERE source = ? AND ends < ?", source, str(freeze.ends))
    assert sorted(name for (name,) in over) == names
    assert world.sql.rows("SELECT * FROM windows WHERE source != ?", source) == others
    for name in names:
        (ended,) = [e for e in world.sql.archive(name) if e["reason"] == "the year has ended"]
        assert ended["actor"] == "user:ana"
    refused = await ana.refused("/calendar", key(), window=source, reason="again")
    assert "that hold is over already" in refused.words


async def test_the_audit_is_the_archive_and_its_file_is_inert(ana: Browser, story: Story, world: World) -> None:
    await world.say(story.worked, Command.OBJECT, "user:ana", team=TEAM, reason="=1+1")
    await eventually(lambda: "=1+1" in {e["reason"] for e in world.sql.archive(story.worked)}, "it is archived")
    address = f"/audit?cluster={quote(story.worked, safe='')}"
    seen = await ana.look(address)
    shown = seen.column(f"Audit of {story.worked}", "Who")
    archived = world.sql.archive(story.worked)  # something may have been archived since the page was made
    assert {number: who.partition(",")[0] for number, who in shown.items()} == {
        str(number): entry["actor"] for number, entry in enumerate(archived[: len(shown)], start=1)
    }
    assert "user:ana" in {who.partition(",")[0] for who in shown.values()}
    own = (await ana.look(f"{address}&actor=user:ana")).column(f"Audit of {story.worked}", "Who")
    assert {number: who.partition(",")[0] for number, who in own.items()} == {
        str(number): e["actor"] for number, e in enumerate(archived, start=1) if e["actor"] == "user:ana"
    }
    answer = await ana.http.get(f"{address}&format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].startswith("attachment")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    later = world.sql.archive(story.worked)[: len(rows)]
    assert [row["actor"] for row in rows] == [entry["actor"] for entry in later]
    assert len(rows) >= len(archived)
    assert "'=1+1" in {row["reason"] for row in rows}, "a spreadsheet takes it for text"
    assert [row["hash"] for row in rows] == [
        found for (found,) in world.sql.rows("SELECT hash FROM audit WHERE cluster = ? ORDER BY seq", story.worked)
    ][: len(rows)]
    assert "Since must be a length of time or a date, such as" in (await ana.look("/audit?since=ever", 400)).words


async def test_the_leader_sees_the_fleet_and_what_a_buffer_costs(ana: Browser, story: Story, world: World) -> None:
    seen = await ana.look("/leader?buffer=15")
    promised = world.sql.one("SELECT sum(gpus) FROM quotas")
    assert "0 of 2 clusters monitored" in seen.words
    assert f"873 GPUs installed, 823 healthy, {promised} promised, 26 of them without a healthy GPU" in seen.words
    # At 15 %: 306 of 361 may be promised where 345 are, and 435 of 512 where 140 are.
    assert (
        "At a buffer of 15%: 39 of 485 promised GPUs are cut: 26 have no healthy GPU behind them now, and 13 "
        "move to flex" in seen.words
    )
    assert [row[0] for row in seen.tables["What a buffer would cost"] if row[0].endswith("%")] == [
        "5%",
        "10%",
        "15%",
        "20%",
    ]
    other = await ana.look("/leader?buffer=12")
    assert "At a buffer of 12%:" in other.words
    assert "At a buffer of 15%:" in (await ana.look("/leader?buffer=<b>")).words, "what is no number is the usual"


# --- giving ---------------------------------------------------------------------------------------


async def test_a_form_of_nobody_changes_nothing(ana: Browser, story: Story, world: World) -> None:
    ((number, name),) = world.sql.rows("SELECT id, cluster FROM windows")
    forms = {
        path("teams", TEAM, "object", story.worked): {"reason": "x"},
        path("teams", TEAM, "ask"): {"cluster": story.roomy, "gpus": "8"},
        path("clusters", story.worked, "abort"): {"reason": "x"},
        "/calendar": {"window": f"{number} {name}", "reason": "x"},
        "/access": {"confirm": "0" * 16},
        path("access", "waiting", "0" * 16): {"do": "countersign"},
        "/requests/q-1": {"command": "approve", "reason": "x"},
    }
    tables = ("windows", "requests", "quotas", "access_files", "waiting_commands")

    def stands() -> list[object]:
        return [world.sql.rows(f"SELECT * FROM {table}") for table in tables]

    before = stands()
    for where, fields in forms.items():
        for token in ({}, {"form_token": ""}, {"form_token": "0" * 64}):
            answer = await ana.http.post(where, data={**token, "once": key(), **fields})
            assert answer.status_code == 403, where
        foreign = {"sec-fetch-site": "cross-site", "origin": "https://elsewhere.example"}
        data = {"form_token": ana.form_token, "once": key(), **fields}
        assert (await ana.http.post(where, data=data, headers=foreign)).status_code == 403
    assert stands() == before
    assert (await world.status(story.worked)).holds == ()
    assert "user:ana" not in {entry["actor"] for entry in world.sql.archive(story.worked)}


async def test_a_team_asks_for_more_and_an_owner_decides(ana: Browser, story: Story, world: World) -> None:
    ask = path("teams", TEAM, "ask")
    fits = (await ana.look(ask)).column("What fits now", "Fits")
    assert fits == {story.worked: "0", story.roomy: str(435 - 140)}, "85 % of 512 may be promised, and 140 are"
    refused = await ana.refused(ask, key(), cluster=story.worked, gpus="8", reason="a deadline")
    assert f"{story.worked} may promise 306 GPUs, and 345 are spoken for" in refused.words
    assert "must be a whole number" in (await ana.refused(ask, key(), cluster=story.roomy, gpus="8.5")).words
    past = await ana.refused(ask, key(), cluster=story.roomy, gpus="8", until="2001-01-01")
    assert "Until 2001-01-01 is in the past" in past.words
    assert [stage for (stage,) in world.sql.rows("SELECT stage FROM requests")] in ([], ["refused"])

    once = key()
    seen = await ana.given(ask, once, cluster=story.roomy, gpus="16", reason=EVIL)
    again = await ana.give(ask, once, cluster=story.roomy, gpus="16", reason=EVIL)
    assert again.status_code in (303, 409)
    asked = world.sql.rows("SELECT id FROM requests WHERE stage = 'asked'")
    assert len(asked) == 1, "sent twice, it asks once"
    name = asked[0][0].removeprefix("request/")
    world.asked.add(name)
    assert EVIL in seen.words
    assert (await ana.look("/requests")).column("Requests", "GPUs") == {name: "16"}
    assert (await ana.look(path("teams", TEAM))).column("Requests", "Stage") == {name: "asked"}

    one = path("requests", name)
    assert "approve needs a reason" in (await ana.refused(one, key(), command="approve", reason="")).words
    assert world.sql.one("SELECT gpus FROM quotas WHERE cluster = ? AND team = ?", story.roomy, TEAM) == 100
    await ana.given(one, key(), command="approve", reason="agreed")
    quota = "SELECT gpus FROM quotas WHERE cluster = ? AND team = ?"
    await eventually(lambda: world.sql.one(quota, story.roomy, TEAM) == 116, "it is granted")
    await eventually(lambda: world.sql.one("SELECT stage FROM requests WHERE id LIKE ?", f"%{name}") == "granted", "")
    over = await ana.look(one)
    assert "is granted" in over.words, "and nothing can be said to it any more"
    assert not [action for action, _ in over.forms if action == one]


async def test_a_team_objects_and_an_owner_lifts_it(ana: Browser, story: Story, world: World) -> None:
    speak = path("teams", TEAM, "object", story.worked)
    assert "object needs a reason" in (await ana.refused(speak, key(), reason="")).words
    assert (await world.status(story.worked)).holds == ()
    await ana.given(speak, key(), reason=EVIL)
    (hold,) = (await world.status(story.worked)).holds
    assert (hold.team, hold.reason) == (TEAM, EVIL)
    seen = await ana.look(path("clusters", story.worked))
    (row,) = seen.tables["Holds"][1:]
    assert (row[0], row[4], row[5]) == ("objection", EVIL, "tpm, unless an access file says otherwise")
    assert "(to be lifted by tpm, unless an access file says otherwise)" in seen.words
    (lift,) = (link for link in seen.links if "resolve?hold=" in link)
    page = await ana.http.get(lift)
    assert "selected" in page.text.partition('name="hold"')[2].partition("</select>")[0]
    resolve = path("clusters", story.worked, "resolve")
    refused = await ana.refused(resolve, key(), hold=hold.id, reason="answered")
    assert "user:ana may not resolve an objection here: ask tpm" in refused.words
    assert [one.id for one in (await world.status(story.worked)).holds] == [hold.id]
    async with ana.another("tpm") as tpm:
        await tpm.given(resolve, key(), hold=hold.id, reason="answered")
    assert (await world.status(story.worked)).holds == ()
    early = await ana.refused(path("teams", TEAM, "ack", story.worked + "x"), key(), reason="")
    assert "Backstop refused this" in early.words


async def test_what_is_said_of_a_command_is_for_the_page_that_follows_it(ana: Browser, story: Story) -> None:
    """A page that is open in another tab, and reloads at the same moment, must not take it away."""
    given = await ana.give(path("teams", TEAM, "object", story.worked), key(), reason="a deadline")
    assert given.status_code == 303
    other = await ana.http.get("/", headers={"sec-fetch-dest": "empty"})
    assert _said_on(other.text) == ""
    follows = await ana.http.get(given.headers["location"], headers={"sec-fetch-dest": "document"})
    assert "<p>" in _said_on(follows.text)
    assert _said_on((await ana.http.get(given.headers["location"])).text) == "", "and on no later one"


def _said_on(text: str) -> str:
    return text.partition('class="said">')[2].partition("</div>")[0].strip()


# --- two persons ----------------------------------------------------------------------------------


async def test_what_waits_is_shown_whole_and_countersigned_by_another(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    async with world_of(temporal, sqlite_ledger_url, tmp_path, keys=(FRONT_KEY, public_keys)) as world:
        file = access(grant("user:sre", "operator"), grant("user:hw-lead", "viewer"))
        await world.person("user:tpm").ask(ImportAccess(file=file))
        async with console_of(world, key=FRONT_KEY, by_file=True) as place:
            tpm, lead, viewer = (Browser(place, known(f"user:{n}")) for n in PEOPLE)
            async with tpm.http, lead.http, viewer.http:
                await _by_two(world, tpm, lead, viewer)


async def _by_two(world: World, tpm: Browser, lead: Browser, viewer: Browser) -> None:
    seen = await tpm.look("/access?command=rollout.pause&cluster=h100")
    assert world.sql.one("SELECT hash FROM access_files") in seen.words
    assert seen.column("Who can", "Who could")["rollout.pause"] == "user:sre"
    one = cluster(fresh("new"), {"main": (8, 8)}, [team("evals", 8)])
    with pytest.raises(AwaitsSecond):
        await tpm.door().import_fleet(Fleet.model_validate({"clusters": [one]}))
    ((digest, by),) = world.sql.rows("SELECT hash, given_by FROM waiting_commands")
    assert by == "user:tpm"
    where = path("access", "waiting", digest)
    assert where in (await lead.look("/access")).links
    assert "you gave the command yourself" in (await tpm.look(where)).words
    assert "viewer" in (await viewer.look(where)).words or "may not" in (await viewer.look(where)).words
    refused = await viewer.refused(where, key(), do="countersign")
    assert "Backstop refused this" in refused.words
    assert world.sql.rows("SELECT second, ended FROM waiting_commands") == [("", "")]
    assert world.sql.rows("SELECT name FROM clusters") == []
    done = await lead.given(where, key(), do="countersign")
    assert "Given by user:tpm, countersigned by user:sre-lead" in done.words
    assert world.sql.rows("SELECT second, ended FROM waiting_commands") == [("user:sre-lead", "given")]
    assert world.sql.rows("SELECT name FROM clusters") != []
    assert "it has already been given" in (await lead.look(where)).words
    await lead.look(path("access", "waiting", "rubbish"), 400)
