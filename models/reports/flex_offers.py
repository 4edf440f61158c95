"""Clusters of the same GPU model whose flex has room for what a team lacks, or for its block."""

from __future__ import annotations

from collections.abc import Sequence

from models.base import GpuCount, Model, Name
from models.flex.flex_now import FlexNow
from models.flex.flex_sum import FlexSum
from models.reports.why import TeamWhy

FlexThere = FlexNow | FlexSum


class FlexOffer(Model):
    """The free flex of one cluster. Units: whole GPUs; where a block is requested, the largest block of one island."""

    cluster: Name
    gpu_model: str | None = None
    gpus: GpuCount
    at_most: bool = False
    """True: the islands of some jobs are unknown, so the block may be smaller."""


def flex_offers(whys: Sequence[TeamWhy], flexes: Sequence[FlexThere]) -> tuple[FlexOffer, ...]:
    """Return clusters that have room, the largest first; none if nothing is lacking.

    A cluster without a stated model may be of any. A block has room only where all of the request fits.
    """
    lacking = [one for one in whys if one.gap_gpus or one.over_gpus]
    model = {flex.cluster: flex.gpu_model for flex in flexes}
    models = {model.get(one.cluster) for one in lacking}
    here = {one.cluster for one in whys}
    least = min((one.asked_gpus if one.block else 1 for one in lacking), default=0)
    block = any(one.block for one in lacking)
    offers = [
        _offer(flex, block=block)
        for flex in flexes
        if lacking
        and flex.cluster not in here
        and (flex.gpu_model is None or None in models or flex.gpu_model in models)
    ]
    return tuple(
        sorted((offer for offer in offers if offer.gpus >= least), key=lambda o: (o.at_most, -o.gpus, o.cluster))
    )


def _offer(flex: FlexThere, *, block: bool) -> FlexOffer:
    free, at_most = flex.available_gpus, False
    if block:
        largest, sure = flex.largest_free_block
        free, at_most = min(free, largest), not sure
    return FlexOffer(cluster=flex.cluster, gpu_model=flex.gpu_model, gpus=free, at_most=at_most)
