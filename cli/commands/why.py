"""`backstop why`: the answer to "I have quota and can't use it"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cli.lazy import command
from cli.list_options import Output, read_listing
from cli.options import LOOK, Actor, AsJson, actor_of, arg, flag, opt, optional_cluster
from models.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.json_answers import WhyAnswer
    from client.backstop import Backstop
    from models.flex.flex_now import FlexNow
    from models.reports.why import WhyAnswers
    from models.rollout.status_models import RolloutStatus

_MOST = 10_000_000


@command(
    LOOK,
    "backstop why research",
    "backstop why research --cluster h100-worked --gpus 64 --all",
    "backstop why research --gpus 352 --block --json",
)
def why(
    team: Annotated[str, arg("TEAM", "The team.", show_default=False)],
    cluster: Annotated[
        str,
        opt(
            "NAME",
            "Only in this cluster. Default: every cluster where the team has a quota.",
            callback=optional_cluster,
        ),
    ] = "",
    gpus: Annotated[str, opt("COUNT", "How many GPUs the team wants.", show_default="all of the quota")] = "",
    block: Annotated[bool, flag("--block", "The GPUs must be one contiguous block in one island.")] = False,
    namespace: Annotated[
        str,
        opt(
            "NAME",
            "The scheduler's namespace that the jobs run in; needed only for a quota that is limited to certain "
            "namespaces.",
            show_default=False,
        ),
    ] = "",
    every: Annotated[bool, flag("--all", "Show every reason, cluster by cluster.")] = False,
    output: Output = None,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show why a team cannot use its quota: what could start now, and what keeps the rest from starting.

    Each reason has the number of GPUs that it costs; the numbers add up to what the team cannot use
    (docs/reading.md).
    """
    if not team.strip():
        raise BadInput("TEAM is empty: name a team")
    wanted, how = _count(gpus) if gpus else None, read_listing(output, as_json=as_json)
    from cli.session import ask

    async def question(door: Backstop) -> tuple[WhyAnswers, dict[str, RolloutStatus], list[FlexNow]]:
        from models.questions import WhyNot

        asked = WhyNot(team=team, cluster=cluster, gpus=wanted, block=block, namespace=namespace)
        answers = await door.ask(asked)
        lacking = [w for w in answers.teams if w.gap_gpus or w.over_gpus]
        rollouts = {rollout.cluster for rollout in await door.rollouts() if rollout.open} & {w.cluster for w in lacking}
        statuses = {name: await door.status(name) for name in sorted(rollouts)}
        return answers, statuses, await door.flex() if lacking else []

    answers, statuses, flexes = ask(actor_of(actor), question)
    if not answers.teams:
        raise BadInput(
            "; ".join(answers.unanswered.values()) or f"no cluster in the ledger has a quota of team {team!r}"
        )
    how.tell(
        lambda: _document(answers, flexes),
        lambda: _parts(answers, statuses, flexes, every=every),
        [one.cluster for one in answers.teams],
    )


def _count(text: str) -> int:
    """Parse a number of GPUs. Errors: BadInput naming the option and the value."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= _MOST):
        raise BadInput(f"--gpus must be a whole number from 1 to {_MOST}, not {text}")
    return int(text)


def _document(answers: WhyAnswers, flexes: list[FlexNow]) -> WhyAnswer:
    from cli.json_answers import WhyAnswer

    return WhyAnswer.of(answers, flexes)


def _parts(
    answers: WhyAnswers, statuses: dict[str, RolloutStatus], flexes: list[FlexNow], *, every: bool
) -> list[RenderableType]:
    from views.why import in_full, summary
    from views.words import line

    return [
        *summary(answers, flexes, hint=not every),
        *([line(), *in_full(answers, statuses, flexes)] if every else []),
    ]
