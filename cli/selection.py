"""Selects a command's clusters: names, globs of open rollouts, and filters. Pure: the open rollouts are an argument."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from cli.options import arg, flag, needed_cluster, opt, with_options
from models.errors import BadInput

if TYPE_CHECKING:
    from models.reports.rollout_summary import RolloutSummary

ClustersOrGlobs = Annotated[
    list[str] | None,
    arg(
        "CLUSTER",
        "Clusters, or globs of clusters with an open rollout: 'h100-*'. If you "
        "name none, choose by --wave, --stage or --needs.",
        show_default=False,
    ),
]
WaveOption = Annotated[
    str,
    opt(
        "N|TIER",
        "Open rollouts of this wave: 1 unallocated, 2 unscheduled, 3 idle, 4 busy, 5 after all waves.",
        "--wave",
    ),
]
StageOption = Annotated[str, opt("STAGE", "Open rollouts in this stage.", "--stage")]
NeedsOption = Annotated[bool, flag("--needs", "Open rollouts that need a person.")]
GLOB = re.compile(r"[*?\[]")
"""The characters that make a word a glob."""


@dataclass(frozen=True)
class Selection:
    """The names, globs and filters of a command. Filters leave some of the open rollouts."""

    names: tuple[str, ...] = ()
    wave: str = ""
    """A wave as the overview shows it; empty: any."""
    stage: str = ""
    needs: bool = False

    @property
    def plain_cluster(self) -> str:
        """The named cluster, if there is only one; empty: several are named, or the open rollouts decide."""
        return self.names[0] if len(self.names) == 1 and not self.looks else ""

    @property
    def looks(self) -> bool:
        """Return whether the selection depends on what is open."""
        return self.is_filtered or any(map(GLOB.search, self.names))

    @property
    def is_filtered(self) -> bool:
        return bool(self.wave or self.stage or self.needs)

    @property
    def text(self) -> str:
        """The selection as it was typed."""
        options = (("--wave", self.wave), ("--stage", self.stage))
        words = [*self.names, *(f"{option} {value}" for option, value in options if value)]
        return " ".join([*words, *(["--needs"] if self.needs else [])])


def selection(
    clusters: ClustersOrGlobs = None, wave: WaveOption = "", stage: StageOption = "", needs: NeedsOption = False
) -> Selection:
    """Read the selection. Errors: BadInput for an empty one, an empty name, and an unknown wave or stage."""
    from models.rollout.stages import Stage

    names = tuple(dict.fromkeys(needed_cluster(name) for name in clusters or ()))
    stages = [stage.value for stage in Stage if not stage.has_ended]
    if stage and stage not in stages:
        raise BadInput(f"--stage must be one of {', '.join(stages)}, not {stage!r}")
    answer = Selection(names=names, wave=_wave(wave) if wave else "", stage=stage, needs=needs)
    if not names and not answer.is_filtered:
        raise BadInput("CLUSTER is missing: name clusters, or open rollouts by --wave, --stage or --needs")
    return answer


on_selected = with_options("of", selection)
"""Gives a command the arguments and options that select clusters, as its parameter `of`."""


def _wave(text: str) -> str:
    from models.cluster.policy import AFTER_ALL, TIERS

    waves = [*(tier.value for tier in TIERS), AFTER_ALL]
    for number, wave in enumerate(waves, 1):
        if text in (str(number), wave):
            return wave
    choices = ", ".join(f"{number} ({wave})" for number, wave in enumerate(waves, 1))
    raise BadInput(f"--wave must be one of {choices}, not {text!r}")


def chosen_clusters(of: Selection, rollouts: Sequence[RolloutSummary]) -> tuple[str, ...]:
    """Return the clusters, named ones first, each once. A name without a filter needs no open rollout.

    Errors: BadInput for a glob or a filter that leaves none, and where it is unknown what needs a person.
    """
    opened = {rollout.cluster: rollout for rollout in rollouts if rollout.open}
    meant: dict[str, None] = {}
    for name in of.names or ("*",):
        meant.update(dict.fromkeys(_match_name(name, opened, alone=not of.is_filtered)))
    if of.needs and any(opened[name].needs is None for name in meant):
        raise BadInput("--needs: no worker answers, so needs are unknown (see backstop doctor); name clusters instead")
    left = [name for name in meant if not of.is_filtered or _passes(of, opened[name])]
    if not left:
        raise BadInput(f"no open rollout matches {of.text} ({_are(len(opened))} open: backstop status --open)")
    return tuple(left)


def _match_name(name: str, opened: dict[str, RolloutSummary], *, alone: bool) -> list[str]:
    if name in opened or (alone and not GLOB.search(name)):
        return [name]
    matches = sorted(cluster for cluster in opened if fnmatchcase(cluster, name))
    if not matches and name != "*":
        what = "the glob matches" if GLOB.search(name) else "this cluster has"
        raise BadInput(f"{name}: {what} no open rollout ({_are(len(opened))} open: backstop status --open)")
    return matches


def _passes(of: Selection, one: RolloutSummary) -> bool:
    return of.wave in ("", one.wave) and of.stage in ("", one.stage) and not (of.needs and not one.needs)


def _are(number: int) -> str:
    return "1 is" if number == 1 else f"{number} are"
