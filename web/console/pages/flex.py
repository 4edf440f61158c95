"""The page of free flex: GPUs by cluster, model and largest block. Its filter is in the address."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from models.errors import BackstopError
from models.flex.flex_sum import FlexSum
from models.page_questions import FLEX_CURVE
from models.questions import FlexOf, FlexSums
from views.flex import block_text, by_free_flex, cluster_parts, fleet_parts, fleet_summary, used_flex
from views.row_models import FlexOffered
from views.words import none_of
from web.console.forms import is_like, number
from web.console.pages.gpu_curves import tallied_points
from web.console.visit import Page, Visit

_A_PAGE = 100


async def flex(visit: Visit) -> Page:
    return await _one(visit, visit.path[1]) if len(visit.path) == 2 else await _fleet(visit)


class _Filter(NamedTuple):
    name: str
    model: str
    least: str

    def has(self, one: FlexSum, block: int) -> bool:
        return (
            is_like(one.cluster, self.name)
            and (not self.model or one.gpu_model == self.model)
            and (not block or one.block_gpus >= block)
        )

    def page(self, number: int) -> str:
        """Return the address of a page with the same filters."""
        asked = {"name": self.name, "model": self.model, "block": self.least, "page": str(number) if number > 1 else ""}
        query = urlencode({name: value for name, value in asked.items() if value})
        return f"/flex?{query}" if query else "/flex"


async def _fleet(visit: Visit) -> Page:
    offers = await visit.ask(FlexSums())
    query = visit.query
    asked = _Filter(query.get("name", "")[:200], query.get("model", "")[:200], query.get("block", "").strip()[:20])
    failed, block = "", 0
    try:
        block = number("The least block", asked.least) if asked.least else 0
    except BackstopError as error:
        failed = error.message
    matches = by_free_flex(one for one in offers if asked.has(one, block))
    none = [none_of(len(offers), "cluster")] if offers else fleet_parts((), ())
    values = {
        "offers": len(offers),
        "parts": fleet_summary(matches, await _record(visit), len(offers)) if matches else none,
        "models": sorted({one.gpu_model for one in offers if one.gpu_model}),
        "name": asked.name,
        "model": asked.model,
        "block": asked.least,
        "failed": failed,
        **_page(matches, asked, query.get("page", "")),
    }
    return Page("flex.html", "Flex", values, 400 if failed else 200)


def _page(found: Sequence[FlexSum], asked: _Filter, wanted: str) -> dict[str, Any]:
    """Return the rows of one page, and links to the others. A number beyond the last page shows that one."""
    last = max(1, -(-len(found) // _A_PAGE))
    present = max(1, min(int(wanted), last)) if re.fullmatch("[0-9]{1,6}", wanted) else 1
    start = _A_PAGE * (present - 1)
    pages = [] if last == 1 else [(n, "" if n == present else asked.page(n)) for n in range(1, last + 1)]
    rows = flex_rows(found[start : start + _A_PAGE])
    return {"rows": rows, "first": start + 1, "last": start + len(rows), "matching": len(found), "pages": pages}


class FlexRow(NamedTuple):
    """A table's row. Units: whole GPUs. `healthy`: empty if it is unknown; the other cells are empty then too."""

    cluster: str
    model: str
    healthy: str = ""
    promised: int = 0
    in_quota: int = 0
    flex: int = 0
    used: int = 0
    free: int = 0
    block: str = ""
    sure: bool = True
    """Whether a block of this size is free; if not, the size is only an upper bound."""


def flex_rows(offers: Sequence[FlexSum]) -> list[FlexRow]:
    """Return a row for each cluster."""
    return [
        FlexRow(one.cluster, one.gpu_model or "")
        if one.health_at is None
        else FlexRow(
            one.cluster,
            one.gpu_model or "",
            f"{one.healthy_gpus}/{one.total_gpus}",
            one.promised_gpus,
            one.in_quota_gpus,
            one.flex_gpus,
            used_flex(one),
            one.available_gpus,
            block_text(*one.largest_free_block),
            one.largest_free_block[1],
        )
        for one in offers
    ]


async def _one(visit: Visit, cluster: str) -> Page:
    (one,) = await visit.ask(FlexOf(cluster=cluster))
    parts = cluster_parts(one, await _record(visit, cluster))
    return Page("flex_cluster.html", f"Flex of {cluster}", {"cluster": cluster, "parts": parts})


async def _record(visit: Visit, cluster: str = "") -> list[FlexOffered]:
    points, _ = await tallied_points(visit, *FLEX_CURVE, cluster)
    return [FlexOffered(at=p.at, flex_gpus=p.flex_gpus, healthy_gpus=p.healthy_gpus) for p in points]
