"""`backstop launch --adopt --all`: every rollout that is lost is taken over at once."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import typer

from cli.options import checked
from cli.session import ask
from models.errors import BackstopError

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.questions import Overview
    from models.rollout.messages import LaunchAnswer

_AT_ONCE = 8
"""Launches under way at the same time."""


def adopt_all(person: str, *, owner: str, reason: str, policy: dict[str, Any], yes: bool, as_json: bool) -> None:
    """Each with the owner that the ledger has, where none is given; ends with 1 where one was refused."""
    from cli.answers import AdoptedAnswer, RefusedAdoption
    from cli.commands.launch import launched_answer
    from cli.output import line, row, show, show_json, table

    lost = ask(person, lambda door: door.lost())
    if lost and not yes and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        _confirm(lost)

    async def question(door: Backstop) -> list[LaunchAnswer | BackstopError]:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def adopt(one: Overview) -> LaunchAnswer | BackstopError:
            async with turn:
                return await _adopted(door, one, person, owner, reason, policy)

        return list(await asyncio.gather(*map(adopt, lost)))

    answers = ask(person, question) if lost else []
    taken = [(a, o.shadow) for a, o in zip(answers, lost, strict=True) if not isinstance(a, BackstopError)]
    refused = [(o.cluster, a.message) for a, o in zip(answers, lost, strict=True) if isinstance(a, BackstopError)]
    if as_json:
        adopted = tuple(launched_answer(answer, shadow=shadow) for answer, shadow in taken)
        why = tuple(RefusedAdoption(cluster=cluster, reason=message) for cluster, message in refused)
        show_json(AdoptedAnswer(adopted=adopted, refused=why).as_json())
    else:
        rows = table("CLUSTER", "=STAGE", "~WHAT TO DO")
        for answer, shadow in taken:
            row(rows, answer.cluster, answer.stage.value, launched_answer(answer, shadow=shadow).approve or None)
        for cluster, message in refused:
            row(rows, cluster, "not adopted", message, style="red")
        said = (
            f"{len(taken)} of {len(lost)} lost rollouts adopted: their effects stand, and each waits for an approval."
        )
        none = "No rollout is lost: Temporal runs all that the ledger has open."
        if lost:
            show(rows, line())
        show(line(said if lost else none))
    if refused:
        raise typer.Exit(1)


async def _adopted(
    door: Backstop, lost: Overview, person: str, owner: str, reason: str, policy: dict[str, Any]
) -> LaunchAnswer | BackstopError:
    from cli.commands.launch import rollout_id
    from models.rollout.messages import LaunchRequest

    request = checked(
        LaunchRequest,
        cluster=lost.cluster,
        rollout=rollout_id(lost.cluster),
        owner=owner or lost.owner or person,
        actor=person,
        reason=reason,
        shadow=lost.shadow,
        adopt=True,
        policy=policy,
    )
    try:
        return await door.launch(request)
    except BackstopError as error:
        return error


def _confirm(lost: list[Overview]) -> None:
    from cli.output import count, line, row, show, table

    rows = table("CLUSTER", "=STAGE", "OWNER", "ROLLOUT", least=["ROLLOUT"])
    for one in lost:
        row(rows, one.cluster, one.stage, one.owner or None, one.rollout)
    show(rows)
    if not typer.confirm(f"Adopt {count(len(lost), 'lost rollout')}?"):
        show(line("Nothing was opened."))
        raise typer.Exit(1)
