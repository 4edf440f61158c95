"""`backstop detach`: take Backstop out of a cluster's scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cli.consent import Yes, consent
from cli.lazy import command
from cli.list_options import tell
from cli.options import SET_UP, Actor, AsJson, Cluster, NeededReason, actor_of, flag
from cli.session import ask
from models.cluster.sources import OF_CLASS
from models.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from client.backstop import Backstop

Limits = dict[str, tuple[int | None, int | None]]
"""Each limit before and after, by its name; None: no limit. Units: GPUs."""
_UNDO = "Undo: import the cluster with its quota system again: backstop fleet import FILE"


@command(
    SET_UP,
    "backstop detach h100-lab --reason 'the pilot is over'",
    "backstop detach h100-lab --restore --reason 'back to how it was' --yes",
)
def detach(
    cluster: Cluster,
    reason: NeededReason,
    restore: Annotated[
        bool, flag("--restore", "Give teams back the limits that they had before Backstop's first write.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Take Backstop out of a cluster's Slurm, Git or Kueue. Teams' limits stay, or are restored with --restore.

    In Slurm, Backstop also resets the limits that it set on the account above the teams and on the QOS of flex, and
    deletes the QOS of job classes (docs/slurm.md). It shows all changes first, and asks. It leaves alone each value
    that somebody else changed later. Refused while a rollout is open.
    """
    from cli.json_answers import DetachedAnswer, LimitBack
    from views.words import line

    if not reason.strip():
        raise BadInput("--reason must say why")
    person = actor_of(actor)
    consent(f"Detach {cluster}?", lambda: _ahead(cluster, restore, reason, person), yes=yes, as_json=as_json)
    back = _detach(cluster, restore, reason, person)
    limits = tuple(
        LimitBack(name=n, before_gpus=before, after_gpus=after) for n, (before, after) in sorted(back.items())
    )
    stands = ": Backstop no longer writes to the cluster's quota system; the ledger keeps the quotas as they are."
    shown = [line((cluster, "bold"), stands), *_limits(back, ">WAS", ">IS"), line(_UNDO)]
    tell(DetachedAnswer(cluster=cluster, limits=limits, undo=_UNDO), lambda: shown, as_json=as_json)


def _detach(cluster: str, restore: bool, reason: str, person: str, *, look: bool = False) -> Limits:
    async def question(door: Backstop) -> Limits:
        from models.questions import Detach

        return await door.ask(Detach(cluster=cluster, restore=restore, reason=reason, look=look))

    return ask(person, question)


def _ahead(cluster: str, restore: bool, reason: str, person: str) -> list[RenderableType]:
    """Show what would be taken back, as the worker reads it from the scheduler."""
    from views.words import count, line

    back = _detach(cluster, restore, reason, person, look=True)
    teams = "teams get back their limits from before Backstop's first write" if restore else "teams keep their limits"
    classes = sum(name.startswith(OF_CLASS) for name in back)
    sentence = f"{count(len(back) - classes, 'limit')} of the quota system would be reset; {teams}."
    if classes:
        sentence += f" {classes} QOS of job classes would be deleted; a QOS with jobs would stay, without effect."
    sentence += " No team is notified."
    return [*_limits(back, ">IS", ">WOULD BE"), line(sentence)]


def _limits(back: Limits, before: str, after: str) -> list[RenderableType]:
    from views.words import row, table

    if not back:
        return []
    rows = table("LIMIT", before, after)
    for name, values in sorted(back.items()):
        shown = [gpus if gpus is not None else "none" for gpus in values]
        row(rows, name, *([shown[0], "gone"] if name.startswith(OF_CLASS) else shown))
    return [rows]
