"""A command to one rollout or to several: who is meant, what it leads to, and what became of it in each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from cli.consent import consent, shown_and_asked
from cli.options import checked, who
from cli.session import ask
from models.errors import BackstopError, Refusal

if TYPE_CHECKING:
    from cli.selection import Selection
    from client.backstop import Backstop
    from models.rollout.ahead import Ahead
    from models.rollout.messages import CommandAnswer, RolloutStatus

    Outcome = tuple[str, CommandAnswer | BackstopError]

_SPELT = {"rollback": "Roll back"}
"""Commands that are another word in a question."""
_SECONDS = 10.0
"""How long it is waited for what a rollout says of itself."""


def give(name: str, of: Selection, actor: str, reason: str, *, yes: bool, as_json: bool, **fields: str) -> None:
    """Asked for where it undoes, or is for several; the same to each of them."""
    from models.rollout.commands import CommandRequest

    person = who(actor)
    checked(CommandRequest, actor=person, reason=reason, **fields)
    clusters = clusters_of(of, person)
    _consent(name, clusters, person, yes=yes, as_json=as_json)
    answered(said(name, clusters, person, reason, lambda _: fields), of, as_json=as_json)


def clusters_of(of: Selection, person: str) -> tuple[str, ...]:
    """Errors: BadInput where a glob or filter leaves none."""
    from cli.selection import chosen

    if not of.looks:
        return of.names
    return chosen(of, ask(person, lambda door: door.overview() if of.needs else door.rollouts()))


def said(
    name: str, clusters: Sequence[str], person: str, reason: str, fields: Callable[[str], dict[str, str]]
) -> list[Outcome]:
    """What became of the command in each. Errors: those of the client, where there is but one."""
    from cli.many import each
    from models.rollout.commands import CommandRequest
    from models.rollout.stages import Command

    async def question(door: Backstop) -> list[Outcome]:
        async def give(cluster: str) -> CommandAnswer:
            return await door.command(cluster, Command(name), requests[cluster])

        return await each(clusters, give)

    requests = {c: checked(CommandRequest, actor=person, reason=reason, **fields(c)) for c in clusters}
    return ask(person, question)


# --- before it ------------------------------------------------------------------------------------


def _consent(name: str, clusters: Sequence[str], person: str, *, yes: bool, as_json: bool) -> None:
    """Errors: as `consent`."""
    from cli.views.consequence import close_parts, many_parts, undo_parts

    what = clusters[0] if len(clusters) == 1 else f"{len(clusters)} rollouts"
    question, several = f"{_SPELT.get(name, name.capitalize())} {what}?", len(clusters) > 1
    if name in ("abort", "rollback"):
        aheads = partial(aheads_of, clusters, person)
        consent(question, lambda: undo_parts(aheads(), ends=name == "abort"), yes=yes, as_json=as_json)
    elif name == "close" and not yes:
        ends = aheads_of(clusters, person)
        if several or any(a.at_risk or a.stage == "stuck" for a in ends):
            consent(question, lambda: close_parts(ends), yes=yes, as_json=as_json)
    elif several:
        consent(question, lambda: many_parts(clusters, _statuses(clusters, person)), yes=yes, as_json=as_json)


def aheads_of(clusters: Sequence[str], person: str) -> list[Ahead]:
    """What the command would lead to; one that is refused is told, and left to be refused again.

    Errors: those of the client, where none answers.
    """
    from cli.many import each
    from cli.output import complain

    async def question(door: Backstop) -> list[tuple[str, Ahead | BackstopError]]:
        return await each(clusters, door.ahead)

    answers = ask(person, question)
    known = [a for _, a in answers if not isinstance(a, BackstopError)]
    refused = [a for _, a in answers if isinstance(a, BackstopError)]
    if not known:
        raise refused[0]
    for error in refused:
        complain(error.message)
    return known


def _statuses(clusters: Sequence[str], person: str) -> list[RolloutStatus | None]:
    answers = ask(person, lambda door: door.ask_rollouts(clusters, _SECONDS))
    return [answers[cluster] for cluster in clusters]


def agreed(aheads: Sequence[Ahead]) -> dict[str, str]:
    """By cluster the plan that was shown and agreed to. Errors: typer.Exit(1) for a no."""
    from cli.output import count, line
    from cli.views.plan import plan_parts, plans_parts

    plans = [a.plan for a in aheads if a.plan is not None]
    if not plans:
        raise Refusal(f"no plan awaits approval in {', '.join(a.cluster for a in aheads)}: see backstop status CLUSTER")
    if len(plans) == 1:
        parts, question = plan_parts(plans[0]), f"Approve plan {plans[0].hash} of {plans[0].cluster}?"
    else:
        parts, question = plans_parts(plans), f"Approve these {len(plans)} plans?"
    told = {q.team for plan in plans for q in plan.quotas if q.leaf and q.cut_gpus}
    rest = [line(f"{a.cluster}: no plan awaits approval; it is left out.") for a in aheads if a.plan is None]
    shown_and_asked(question, [*parts, *rest, line(f"{count(len(told), 'team')} will be told.")])
    return {plan.cluster: plan.hash for plan in plans}


# --- after it -------------------------------------------------------------------------------------


def answered(outcomes: Sequence[Outcome], of: Selection, *, as_json: bool) -> None:
    """One plain name is answered as such; several with a line each, and 1 as exit code where one was refused."""
    from cli.answers import CommandTaken
    from cli.output import line, show, show_json

    if not of.plain:
        _answered_many(outcomes, as_json=as_json)
        return
    ((_, answer),) = outcomes
    if isinstance(answer, BackstopError):
        raise answer
    if as_json:
        show_json(CommandTaken(**answer.model_dump()).as_json())
        return
    show(
        line((answer.cluster, "bold"), f" ({answer.stage}): {answer.said}"), *([line(answer.undo)] * bool(answer.undo))
    )


def _answered_many(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    from cli.answers import CommandOutcome, CommandsTaken
    from cli.output import line, row, show, show_json, table

    taken = [a for _, a in outcomes if not isinstance(a, BackstopError)]
    refused = len(outcomes) - len(taken)
    if as_json:
        show_json(CommandsTaken(answers=tuple(CommandOutcome.of(*outcome) for outcome in outcomes)).as_json())
    else:
        rows = table("CLUSTER", "=STAGE", "WHAT BECAME OF IT")
        for cluster, a in outcomes:
            if isinstance(a, BackstopError):
                row(rows, cluster, "refused", a.message, style="red")
            else:
                row(rows, cluster, a.stage, a.said)
        said = f"{len(taken)} taken, {refused} refused." if refused else f"{len(taken)} taken."
        show(rows, line(), line(said), *(line(undo) for undo in _undone_together(taken)))
    if refused:
        raise typer.Exit(1)


def _undone_together(taken: Sequence[CommandAnswer]) -> list[str]:
    """The undo of all that have the same one, in one line with all their names; what names no cluster stays alone."""
    alike: dict[tuple[str, str], list[str]] = {}
    for answer in taken:
        name = shlex.quote(answer.cluster)
        found = re.match(rf"(.*?backstop [a-z]+) {re.escape(name)}(?!\S)(.*)", answer.undo, re.DOTALL)
        if found is not None:
            alike.setdefault((found[1], found[2]), []).append(name)
        elif answer.undo:
            alike.setdefault((f"{answer.cluster}: {answer.undo}", ""), [])
    return [" ".join((before, *names)) + after for (before, after), names in alike.items()]
