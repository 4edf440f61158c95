"""`backstop detach`: leave a cluster's scheduler alone again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import SET_UP, Actor, AsJson, Cluster, NeededReason, examples, who
from cli.session import ask
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "backstop detach h100-lab --reason 'the pilot is over'",
            "backstop detach h100-lab --restore --reason 'back to how it was'",
        ),
        rich_help_panel=SET_UP,
    )(detach)


def detach(
    cluster: Cluster,
    reason: NeededReason,
    restore: Annotated[
        bool, typer.Option("--restore", help="Bring the quotas back to what they were before Backstop wrote them.")
    ] = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Take Backstop out of a cluster's Slurm. What bounds others there goes; limits of teams stay, or are restored.

    What somebody else has changed since is left alone. While a rollout is open it is refused.
    """
    from cli.answers import DetachedAnswer, LimitBack
    from cli.output import line, row, show, show_json, table

    if not reason.strip():
        raise BadInput("--reason must say why")

    async def question(door: Backstop) -> dict[str, tuple[int | None, int | None]]:
        from models.questions import Detach

        return await door.ask(Detach(cluster=cluster, restore=restore, reason=reason))

    back = ask(who(actor), question)
    if as_json:
        limits = tuple(LimitBack(name=n, before_gpus=b, after_gpus=a) for n, (b, a) in sorted(back.items()))
        show_json(DetachedAnswer(cluster=cluster, limits=limits).as_json())
        return
    show(line((cluster, "bold"), ": Backstop writes to its Slurm no more; its quotas stand in the ledger as they are."))
    if back:
        rows = table("LIMIT", ">WAS", ">IS")
        for name, (before, after) in sorted(back.items()):
            row(rows, name, "none" if before is None else before, "none" if after is None else after)
        show(rows)
