"""Everything that people read of a whole story, against the ledger: a fleet, a breach, a rollback, a window, requests.

Numbers are small on purpose, one GPU cut, one missing, one granted: a sentence that cannot count one shows.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType

from models.cluster.windows import Declared, Window, WindowKind
from models.errors import Refusal
from models.questions import Declare, WhyNot
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk, RequestStage
from models.rollout.stages import Command, Stage
from tests.e2e.world import PATIENCE, World, cluster, eventually, fresh, team, worked_case
from views.fleet_rollout import status_parts as fleet_status_parts
from views.status import status_parts
from views.why import in_full, summary

_ONE, _MORE = r"(?<![\d.,/-])1 (?:(?:more|other|open|healthy|lost) )?", r"(?<![\d.,/-])(?:0|[2-9]|\d\d+) "
WRONG = {
    "one in the plural": _ONE
    + r"(?:GPUs|clusters|teams|jobs|nodes|windows|rollouts|quotas|days|hours|minutes|notices|attempts|failures)\b",
    "a plural verb of one": _ONE + r"(?:GPU |cluster |team |job |of them )?(?:have|are|were|wait|lack|need)\b",
    "many in the singular": _MORE + r"(?:GPU|cluster|team|job|node|rollout|quota|notice)\b(?! model)",
    "said twice": r"\b(\w{4,})(?:, by \w+)?: \1\b",
    "no value": r"\bNone\b(?! of)|\bnull\b|\{\w*\}|  \.",
    "an empty end": r"\(\)|: ?$|: \.|, ?\.",
}


def wrong_in(text: str) -> list[str]:
    """Return the parts of a text that no person would write, each with its place."""
    return [
        f"{what}: ...{text[max(0, m.start() - 60) : m.end() + 40]!r}"
        for what, pattern in WRONG.items()
        for m in re.finditer(pattern, text)
    ]


def shown(parts: Iterable[RenderableType]) -> str:
    out = io.StringIO()
    console = Console(file=out, width=400, color_system=None)
    for part in parts:
        console.print(part)
    return out.getvalue()


def sizes(name: str, total: int, quotas: list[dict[str, Any]], **policy: Any) -> dict[str, Any]:
    made = cluster(name, {"main": (total, total)}, quotas, owners=["capacity"], plausible_drop="0.9", **policy)
    return {**made, "gpus_per_node": 1}


async def test_all_that_is_read_of_a_story_is_true_and_counts(world: World) -> None:
    breach, undone, asked = (fresh(name) for name in ("breach", "undone", "asked"))
    await world.fleet(
        sizes(breach, 10, [team("solo", 9, busy=9)]),
        sizes(undone, 20, [team("solo", 9), team("pair", 9, busy=8)]),
        sizes(asked, 100, [team("evals", 30), team("research", 40, busy=20)]),
    )
    await world.start_fleet(fresh("fleet"), {"max_failed": "0.9"})
    await world.until_fleet(lambda s: s.stage.has_ended, 3 * PATIENCE)  # three waves, one after another
    texts: dict[str, str] = {}

    async def look(when: str) -> None:
        for name in (breach, undone, asked):
            texts[f"status {name} {when}"] = shown(status_parts(await world.status(name)))
        for who in ("solo", "pair", "research", "evals"):
            answers = await world.tpm.ask(WhyNot(team=who))
            texts[f"why {who} {when}"] = shown([*summary(answers, [], hint=False), *in_full(answers, {}, [])])
        found = await world.tpm.fleet_status()
        texts[f"fleet {when}"] = shown(fleet_status_parts(found, found.members))

    await look("at peace")
    await world.healthy(breach, main=(10, 7))
    await world.until(breach, lambda s: s.stage is Stage.ROLLED_BACK)
    await look("after the breach")
    await world.say(undone, Command.ROLLBACK, reason="wrong week")
    await world.until(undone, Stage.ROLLED_BACK)
    begins = world.now() + timedelta(hours=2)
    window = Window(
        kind=WindowKind.MAINTENANCE, reason="a switch", starts=begins, ends=begins + timedelta(hours=1), gpus=99
    )
    await world.tpm.ask(Declare(declared=(Declared(source="hold 1", windows=((asked, window),)),)))
    for gpus, stage in ((1, RequestStage.GRANTED), (50, RequestStage.REFUSED)):
        request = f"r-{gpus}-{asked}"
        world.asked.add(request)
        await world.person("dev").request(
            QuotaAsk(request=request, team="research", cluster=asked, gpus=gpus, actor="dev", reason="a deadline")
        )
        if stage is RequestStage.GRANTED:
            order = RequestOrder(actor="capacity", reason="it fits")
            await world.person("capacity").decide_request(request, RequestCommand.APPROVE, order)
            await eventually(lambda: world.sql.gpus(asked)["research"] == 41, "one GPU more is granted")
            await eventually(
                lambda: any("1 GPU is granted to research" in e["text"] for e in world.sql.archive(asked)), "archived"
            )
    await look("at the end")
    for name, who in ((breach, "solo"), (undone, "pair")):
        await eventually(lambda n=name, w=who: ("rolled_back", w) in world.notices(n), f"{who} is told")  # type: ignore[misc]
    notices = [json.loads(line) for line in (world.home / "notices.jsonl").read_text().splitlines()]
    texts |= {f"notice {n['key']}": f"{n['subject']}\n{n['body']}" for n in notices}
    audit = world.sql.rows("SELECT cluster, seq, entry FROM audit ORDER BY cluster, seq")
    texts |= {f"audit {name} {seq}": json.loads(entry)["text"] for name, seq, entry in audit}
    assert {place: wrong for place, text in texts.items() if (wrong := wrong_in(text))} == {}
    assert len(texts) > 90

    _quotas_are_those_of_receipts(world, [n["notice"] | {"text": n["body"]} for n in notices])
    for name in (breach, undone, asked):
        rows = world.sql.rows("SELECT team, gpus FROM quotas WHERE cluster = ?", name)
        total = sum(gpus for _, gpus in rows)
        # The column is as wide as its longest name: "next look" stands there for as long as there is one.
        words = " ".join(texts[f"status {name} at the end"].split())
        assert f" now {total} promised, {total} backed, 0 phantom" in words
        for who, gpus in rows:
            quota = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
            assert f"{who} in {name} has a quota of {quota}: " in texts[f"why {who} at the end"]


def _quotas_are_those_of_receipts(world: World, notices: list[dict[str, Any]]) -> None:
    """Each "it was A" and "is now B" of a notice is one write of the ledger's own receipts; every write was told of."""
    writes = set[tuple[str, str, int, int]]()
    for name, body in world.sql.rows("SELECT cluster, receipt FROM receipts"):
        receipt = json.loads(body)
        writes |= {(name, who, receipt["before"][who], after) for who, after in receipt["after"].items()}
    heard = set[tuple[str, str, int, int]]()
    for notice in notices:
        now = re.search(r"[Yy]our quota .*?is now (\d+) GPUs?; it was (\d+)", notice["text"])
        up = re.search(r"comes back up from (\d+) to (\d+) GPU", notice["text"])
        if now or up:
            before, after = (now[2], now[1]) if now else (up[1], up[2]) if up else ("", "")
            heard.add((notice["cluster"], notice["audience"], int(before), int(after)))
    granted = {write for write in writes if write[1] == "research"}  # its asker is told, by a notice of the request
    assert heard == {write for write in writes - granted if write[2] != write[3]}
    assert {(before, after) for _, _, before, after in granted if before != after} == {(40, 41)}


async def test_secrets_that_went_into_another_ledger_name_the_setting(world: World) -> None:
    world.stage = lambda *part: None
    with pytest.raises(Refusal, match=r"another ledger than this machine, so .* set BACKSTOP_LEDGER_URL"):
        await world.fleet(worked_case(fresh("c")), teams=[{"name": "research", "contacts": ["slack://T/B/secret"]}])
