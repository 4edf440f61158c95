"""Sends a command to one rollout or to several: selects them, shows the impact, and reports each result."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from cli.commands_from_rows import TypedOrder
from cli.consent import can_ask, consent, needs_somebody, show_and_ask
from cli.list_options import tell
from cli.options import actor_of, check_model
from cli.session import ask
from models.errors import BackstopError, BadInput, Refusal
from models.lifecycle.command_rows import Asks, CommandRow
from models.texts import count_text, some_of

if TYPE_CHECKING:
    from cli.selection import Selection
    from models.rollout.command_previews import Ahead
    from models.rollout.messages import CommandAnswer
    from models.rollout.status_models import RolloutStatus

    Outcome = tuple[str, CommandAnswer | BackstopError]

_SECONDS = 10.0
"""How long a command waits for a rollout's own status."""


def give(order: TypedOrder) -> None:
    """Give the command to each rollout; one that undoes, or goes to several, asks first."""
    from models.rollout.commands import CommandRequest

    if order.row.asks is Asks.PLAN:
        if not (plan := order.fields["plan_hash"]):
            _approve(order)
            return
        if not order.of.plain_cluster:
            raise BadInput(f"--plan {plan} is one cluster's plan: name that cluster, and no other")
        order = order._replace(yes=True)
    person = actor_of(order.actor)
    check_model(CommandRequest, actor=person, reason=order.reason, **order.fields)
    clusters = clusters_of(order.of, person)
    left = {} if order.yes else _consent(order, clusters, person)
    outcomes = {
        **dict(_send_each(order, [c for c in clusters if c not in left], person, lambda _: order.fields)),
        **left,
    }
    print_outcomes([(cluster, outcomes[cluster]) for cluster in clusters], order.of, as_json=order.as_json)


def _approve(order: TypedOrder) -> None:
    """Show the plans, ask, and approve each by its hash."""
    if not order.yes and not can_ask(as_json=order.as_json):
        raise BadInput(
            "--plan is missing: there is no terminal to show a plan and ask; `backstop status CLUSTER` shows its hash, "
            "and --yes approves the current plan"
        )
    person = actor_of(order.actor)
    aheads, silent = aheads_of(clusters_of(order.of, person), person)
    hashes, left = agree_each(aheads, silent, yes=order.yes)
    outcomes = _send_each(order, tuple(hashes), person, lambda name: {"plan_hash": hashes[name]})
    print_outcomes([*outcomes, *left.items()], order.of, as_json=order.as_json)


def clusters_of(of: Selection, person: str) -> tuple[str, ...]:
    """Return the selection's clusters. Errors: BadInput if a glob or filter leaves none."""
    from cli.selection import chosen_clusters

    if not of.looks:
        return of.names
    return chosen_clusters(of, ask(person, lambda door: door.overview() if of.needs else door.rollouts()))


def _send_each(
    order: TypedOrder, clusters: Sequence[str], person: str, fields: Callable[[str], Mapping[str, str]]
) -> list[Outcome]:
    """Send the command to each; return the outcomes. Errors: those of the client, where there is one cluster."""
    from cli.act_on_each import act_on_each
    from models.rollout.commands import CommandRequest
    from models.rollout.stages import Command

    command = Command(order.row.name)
    requests = {c: check_model(CommandRequest, actor=person, reason=order.reason, **fields(c)) for c in clusters}
    return ask(
        person, lambda door: act_on_each(clusters, lambda cluster: door.command(cluster, command, requests[cluster]))
    )


# --- before it ------------------------------------------------------------------------------------


def _consent(order: TypedOrder, clusters: Sequence[str], person: str) -> dict[str, BackstopError]:
    """Ask where the command needs it; return the clusters that are left out, and why: a yes covers only what was shown.

    Errors: as `consent`; Refusal if no rollout would take it.
    """
    from models.rollout.stages import Command
    from views.consequence import many_parts

    row, as_json, several = order.row, order.as_json, len(clusters) > 1
    question = _question(row, clusters)
    if row.asks is Asks.NOTICE:
        _consent_to_promote(order, question, clusters, person)
        return {}
    if row.asks not in (Asks.UNDO, Asks.RISK):
        if several:
            parts = partial(many_parts, clusters)
            consent(question, lambda: parts(_statuses(clusters, person)), yes=False, as_json=as_json)
        return {}
    if row.asks is Asks.UNDO:
        needs_somebody(question, as_json=as_json)
    aheads, silent = aheads_of(clusters, person)
    if row.asks is Asks.RISK and not several and not any(a.at_risk or a.stage == "stuck" for a in aheads):
        return {}
    needs_somebody(question, as_json=as_json)
    refusals = {a.cluster: a.refusal(Command(row.name), order.reason) for a in aheads}
    return _agree_to(row, aheads, silent, refusals)


def _consent_to_promote(order: TypedOrder, question: str, clusters: Sequence[str], person: str) -> None:
    """Ask before a promotion: for several clusters always, for one if its gate is not met and a person can answer."""
    from views.consequence import consequence_parts, many_parts

    several = len(clusters) > 1
    if several:
        needs_somebody(question, as_json=order.as_json)
    elif not can_ask(as_json=order.as_json):
        return
    aheads, _ = aheads_of(clusters, person)
    parts = consequence_parts(order.row, aheads)
    if several:
        show_and_ask(question, [*many_parts(clusters, _statuses(clusters, person)), *parts])
    elif parts:
        show_and_ask(question, parts)


def _agree_to(
    row: CommandRow, aheads: Sequence[Ahead], silent: Mapping[str, BackstopError], refusals: Mapping[str, str]
) -> dict[str, BackstopError]:
    """Show the clusters that would take the command, ask, and return those that are left out. Errors: as `_consent`."""
    from models.texts import some_of
    from views.consequence import consequence_parts, left_parts

    going = [a for a in aheads if not refusals[a.cluster]]
    refusing = [a for a in aheads if refusals[a.cluster]]
    why = {f"{a.cluster} ({a.stage}), which would refuse it": (a.cluster, refusals[a.cluster]) for a in refusing}
    why |= {cluster: (cluster, error.message) for cluster, error in silent.items()}
    left: dict[str, BackstopError] = {
        cluster: Refusal(f"{row.name} was not given to {whom}: {text}") for whom, (cluster, text) in why.items()
    }
    if not going:
        raise Refusal(some_of([error.message for error in left.values()], by="; "))
    question = _question(row, [a.cluster for a in going])
    show_and_ask(question, [*consequence_parts(row, going), *left_parts(refusing, refusals, silent)])
    return left


def _question(row: CommandRow, clusters: Sequence[str]) -> str:
    return row.question_text(of=clusters[0] if len(clusters) == 1 else f"{len(clusters)} rollouts")


def aheads_of(clusters: Sequence[str], person: str) -> tuple[list[Ahead], dict[str, BackstopError]]:
    """Return what a command would lead to in each cluster, and the errors of those that do not answer.

    Errors: those of the client, where none answers.
    """
    from cli.act_on_each import act_on_each

    answers = ask(person, lambda door: act_on_each(clusters, door.ahead))
    aheads = [a for _, a in answers if not isinstance(a, BackstopError)]
    silent = {cluster: a for cluster, a in answers if isinstance(a, BackstopError)}
    if not aheads:
        raise next(iter(silent.values()))
    return aheads, silent


def _statuses(clusters: Sequence[str], person: str) -> list[RolloutStatus | None]:
    answers = ask(person, lambda door: door.ask_rollouts(clusters, _SECONDS))
    return [answers[cluster] for cluster in clusters]


def agree_each(
    aheads: Sequence[Ahead], silent: Mapping[str, BackstopError], *, yes: bool
) -> tuple[dict[str, str], dict[str, BackstopError]]:
    """Return, by cluster, the plan that was shown and agreed to, and the errors of those that were left out unseen.

    `silent`: the clusters that do not answer, and why. `yes`: nobody is asked. Errors: typer.Exit(1) for a no.
    """
    from views.consequence import approved_line
    from views.plan import plan_parts, plans_parts
    from views.words import line

    waiting = [a for a in aheads if a.plan is not None]
    plans = [a.plan for a in waiting if a.plan is not None]
    if not plans:
        names = [a.cluster for a in aheads]
        see = shlex.join(["backstop", "status", *names[: len(names) == 1]])
        raise Refusal(f"no plan awaits approval in {some_of(names)}: see {see}")
    hashes = {a.cluster: a.plan.hash for a in waiting if a.plan is not None}
    if yes:
        without = {a.cluster: Refusal("no plan awaits approval") for a in aheads if a.plan is None}
        return hashes, {**without, **silent}
    if len(plans) == 1:
        parts, question = plan_parts(plans[0]), f"Approve plan {plans[0].hash} of {plans[0].cluster}?"
    else:
        parts, question = plans_parts(plans), f"Approve these {count_text(len(plans), 'plan')}?"
    rest = [line(f"{a.cluster}: no plan awaits approval; it is left out.") for a in aheads if a.plan is None]
    rest += [line(f"{cluster} is left out: {error.message}.") for cluster, error in silent.items()]
    show_and_ask(question, [*parts, *rest, approved_line(waiting)])
    return hashes, {}


# --- after it -------------------------------------------------------------------------------------


def print_outcomes(outcomes: Sequence[Outcome], of: Selection, *, as_json: bool) -> None:
    """Print the outcome of one named cluster, or a line for each of several, with exit code 1 where one was refused."""
    from cli.json_answers import CommandTaken
    from views.words import line

    if not of.plain_cluster:
        _print_many(outcomes, as_json=as_json)
        return
    ((_, answer),) = outcomes
    if isinstance(answer, BackstopError):
        raise answer
    sentence = line((answer.cluster, "bold"), f" ({answer.stage}): {answer.said}")
    shown = [sentence, *([line(answer.undo)] * bool(answer.undo))]
    tell(CommandTaken(**answer.model_dump()), lambda: shown, as_json=as_json)


def _print_many(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    from cli.json_answers import CommandOutcome, CommandsTaken
    from views.words import line, row, table

    taken = [answer for _, answer in outcomes if not isinstance(answer, BackstopError)]
    refused = len(outcomes) - len(taken)
    rows = table("CLUSTER", "=STAGE", "~RESULT")
    for cluster, answer in outcomes:
        if isinstance(answer, BackstopError):
            row(rows, cluster, "refused", answer.message, style="red")
        else:
            row(rows, cluster, answer.stage, answer.said)
    sentence = f"{len(taken)} accepted, {refused} refused." if refused else f"{len(taken)} accepted."
    below = [line(), line(sentence), *(line(undo) for undo in _join_undo_commands(taken))]
    answers = CommandsTaken(answers=tuple(CommandOutcome.of(*outcome) for outcome in outcomes))
    tell(answers, lambda: [rows, *below], as_json=as_json)
    if refused:
        raise typer.Exit(1)


def _join_undo_commands(taken: Sequence[CommandAnswer]) -> list[str]:
    """Join equal undo commands into one line with all their names; one that names no cluster stays alone."""
    alike: dict[tuple[str, str], list[str]] = {}
    for answer in taken:
        name = shlex.quote(answer.cluster)
        match = re.match(rf"(.*?backstop [a-z]+) {re.escape(name)}(?!\S)(.*)", answer.undo, re.DOTALL)
        if match is not None:
            alike.setdefault((match[1], match[2]), []).append(name)
        elif answer.undo:
            alike.setdefault((f"{answer.cluster}: {answer.undo}", ""), [])
    return [_with_all(before, names, after) for (before, after), names in alike.items()]


def _with_all(before: str, names: Sequence[str], after: str) -> str:
    """Return the command with all names where it takes many; a launch takes one."""
    if before.endswith("backstop launch") and len(names) > 1:
        return f"{before} CLUSTER{after}, for each of {', '.join(names)}"
    return " ".join((before, *names)) + after
