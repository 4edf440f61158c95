"""The page that launches a rollout, which changes nothing before approval: clusters without one, and a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client.new_rollout_id import new_rollout_id
from client.who_could_act import name_other_lifters
from models.errors import Refusal
from models.questions import LedgerCluster, LedgerClusters, SnapshotNow
from models.rollout.messages import LaunchAnswer, LaunchRequest
from web.console.forms import fill_model, try_work
from web.console.views_html import place
from web.console.visit import Elsewhere, Page, Visit

_AT_ONCE = 50


async def launch(visit: Visit) -> Page | Elsewhere:
    if len(visit.path) == 1:
        return await _which(visit)
    if len(visit.path) == 2:
        return await _launch_and_show(visit, visit.path[1]) if visit.form else await _form(visit, visit.path[1])
    raise Refusal("there is no such page of a launch")


async def _which(visit: Visit) -> Page:
    """Return one page of clusters without an open rollout. The ledger filters them, so that each page is full."""
    after = visit.query.get("after", "")[:300]
    rows = await visit.ask(LedgerClusters(after=after, limit=_AT_ONCE, free=True))
    last = _name(rows[-1]) if rows else ""
    # Of clusters with many quotas a page may have fewer than it may: whether there are more is asked.
    more = last if rows and await visit.ask(LedgerClusters(after=last, limit=1, free=True)) else ""
    there_are = bool(rows or after or await visit.ask(LedgerClusters(limit=1)))
    free = [(_name(row), _gpus(row), row.wrong) for row in rows if row.rollout is None]
    values = {"rows": free, "after": after, "more": more, "there_are": there_are}
    return Page("launch.html", "Launch a rollout", values)


async def _form(visit: Visit, name: str, failed: str = "") -> Page:
    request = _request(name, visit.principal.name, {})
    values: dict[str, Any] = {
        "cluster": name,
        "owner": visit.form.get("owner", visit.principal.name),
        "reason": visit.form.get("reason", ""),
        "shadow": "shadow" in visit.form,
        "failed": failed,
        "why_not": await visit.why_not("launch", request=request) or await _impossible(visit, name),
    }
    return Page("launch_one.html", f"Launch a rollout: {name}", values, 409 if failed else 200)


async def _impossible(visit: Visit, name: str) -> str:
    """Return why nobody could launch a rollout there now; empty: somebody could."""
    status, _ = await visit.try_call("status", cluster=name)
    if status is not None and not status.stage.has_ended:
        return f"a rollout of {name} is open already"
    _, why = await visit.try_ask(SnapshotNow(cluster=name))
    return why


async def _launch_and_show(visit: Visit, name: str) -> Page | Elsewhere:
    answer, failed = await try_work(visit, _launch(visit, name))
    if failed:
        return await _form(visit, name, failed)
    if answer is not None:
        resolves, _ = await try_work(visit, name_other_lifters(visit.ask, answer, visit.principal.name))
        sentence = f"A rollout of {name} is open, and its plan waits for an approval."
        visit.add_sentence(f"{sentence} {resolves}" if resolves else sentence)
    return Elsewhere(place("clusters", name))


async def _launch(visit: Visit, name: str) -> LaunchAnswer:
    """Launch the rollout. Errors: BadInput for a malformed request, those of the launch."""
    answer: LaunchAnswer = await visit.call("launch", request=_request(name, visit.principal.name, visit.form))
    return answer


def _request(name: str, who: str, form: Mapping[str, str]) -> LaunchRequest:
    """Read the form. Errors: BadInput in one sentence."""
    return fill_model(
        LaunchRequest,
        cluster=name,
        rollout=new_rollout_id(name),
        owner=form.get("owner", "").strip() or who,
        actor=who,
        reason=form.get("reason", "").strip(),
        shadow="shadow" in form,
    )


def _name(row: LedgerCluster) -> str:
    return row.name or ("" if row.cluster is None else row.cluster.name)


def _gpus(row: LedgerCluster) -> int | None:
    return None if row.cluster is None else sum(island.total_gpus for island in row.cluster.islands)
