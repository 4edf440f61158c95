"""`backstop launch A B 'h100-*'`: a rollout of each, shown and confirmed together."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from cli.act_on_each import act_on_each
from cli.consent import needs_somebody, show_and_ask
from cli.list_options import tell
from cli.options import check_model
from cli.selection import GLOB
from cli.session import ask
from models.errors import BackstopError, BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.options import Overlay
    from client.backstop import Backstop
    from models.planning.plan import Plan
    from models.rollout.messages import LaunchAnswer, LaunchRequest


@dataclass(frozen=True)
class Launching:
    """The options of a launch, of whichever kind. `owner` may be empty; `overlay`: the policy's settings."""

    names: tuple[str, ...]
    person: str
    overlay: Overlay
    owner: str
    reason: str
    shadow: bool
    yes: bool
    as_json: bool

    @property
    def has_globs(self) -> bool:
        return any(map(GLOB.search, self.names))

    @property
    def clusters_text(self) -> str:
        return f"CLUSTER {' '.join(self.names)!r}"

    @property
    def request(self) -> dict[str, Any]:
        """Return the fields that every launch has."""
        policy = self.overlay.settings
        return {"owner": self.owner or self.person, "reason": self.reason, "shadow": self.shadow, "policy": policy}

    def request_of(self, cluster: str, *, adopt: bool = False) -> LaunchRequest:
        """Return the request of one cluster's launch. Errors: BadInput."""
        from client.new_rollout_id import new_rollout_id
        from models.rollout.messages import LaunchRequest

        own = {"cluster": cluster, "rollout": new_rollout_id(cluster), "actor": self.person, "adopt": adopt}
        return check_model(LaunchRequest, **own, **self.request)


def launch_many(of: Launching) -> None:
    """Launch each; exit with 1 where one was refused. Errors: as `consent`; BadInput if a glob matches nothing."""
    clusters = _match_clusters(of)
    if not of.yes:
        needs_somebody("Open several rollouts?", as_json=of.as_json)
    left = {} if of.yes else _agree_to_plans(of, clusters)
    answers, resolves = _launch_each(of, [c for c in clusters if c not in left])
    outcomes = {**dict(answers), **left}
    _print_outcomes([(c, outcomes[c]) for c in clusters], resolves, shadow=of.shadow, as_json=of.as_json)


def _match_clusters(of: Launching) -> tuple[str, ...]:
    """Return the clusters in their order on the command line, once each. A glob matches those without a rollout."""
    if not of.has_globs:
        return of.names
    rows = ask(of.person, lambda door: door.describe_clusters())
    cluster_names = {row.name or row.cluster.name for row in rows if row.cluster is not None}
    free = sorted(row.cluster.name for row in rows if row.cluster is not None and row.stage is None)
    meant: dict[str, None] = {}
    for name in of.names:
        alike = [name] if name in cluster_names or not GLOB.search(name) else [c for c in free if fnmatchcase(c, name)]
        if not alike:
            taken = sum(fnmatchcase(c, name) for c in cluster_names)
            why = (
                f"every cluster that the glob matches ({taken}) already has an open rollout"
                if taken
                else "the glob matches no cluster"
            )
            raise BadInput(f"{name}: {why}: see `backstop fleet show`")
        meant.update(dict.fromkeys(alike))
    return tuple(meant)


async def plan_one(door: Backstop, cluster: str, overlay: Overlay) -> Plan:
    """Return the plan of a launch with these settings now. Errors: those of the door."""
    from models.planning.plan import make_plan

    snapshot, default = await door.snapshot(cluster, overlay.for_snapshot)
    return make_plan(snapshot, overlay.apply_to(default))


def _agree_to_plans(of: Launching, clusters: Sequence[str]) -> dict[str, BackstopError]:
    """Show the plans and ask; return the clusters that cannot be planned and are left out."""
    from views.plan import plans_parts
    from views.words import line

    answers = ask(of.person, lambda door: act_on_each(clusters, lambda cluster: plan_one(door, cluster, of.overlay)))
    plans = [a for _, a in answers if not isinstance(a, BackstopError)]
    left = {cluster: a for cluster, a in answers if isinstance(a, BackstopError)}
    if not plans:
        raise next(iter(left.values()))
    parts: list[RenderableType] = plans_parts(plans)
    parts += [line(f"{cluster} is left out: {error.message}.") for cluster, error in left.items()]
    shadow = "; no quota is written, no team is notified" if of.shadow else ""
    parts.append(line(f"Each cluster gets its own rollout, which waits until somebody approves its plan{shadow}."))
    opens = "a rollout" if len(plans) == 1 else f"{len(plans)} rollouts"
    show_and_ask(f"Open {opens}?", parts)
    return left


def _launch_each(
    of: Launching, clusters: Sequence[str]
) -> tuple[list[tuple[str, LaunchAnswer | BackstopError]], dict[str, str]]:
    """Launch each; return the answers, and by cluster who resolves its holds where the launcher may not."""
    from client.who_could_act import name_other_lifters

    requests = {cluster: of.request_of(cluster) for cluster in clusters}

    async def question(door: Backstop) -> tuple[list[tuple[str, LaunchAnswer | BackstopError]], dict[str, str]]:
        answers = await act_on_each(clusters, lambda cluster: door.launch(requests[cluster]))
        opened = [a for _, a in answers if not isinstance(a, BackstopError)]
        alike = {(a.lifters, a.deciders): a for a in opened}
        texts = {who: await name_other_lifters(door.ask, a, of.person) for who, a in alike.items()}
        return answers, {a.cluster: text for a in opened if (text := texts[a.lifters, a.deciders])}

    return ask(of.person, question)


def _print_outcomes(
    outcomes: Sequence[tuple[str, LaunchAnswer | BackstopError]],
    resolves: Mapping[str, str],
    *,
    shadow: bool,
    as_json: bool,
) -> None:
    from cli.json_answers import LaunchedAnswer, LaunchedMany, RefusedLaunch

    launched = [a for _, a in outcomes if not isinstance(a, BackstopError)]
    refused = [(cluster, a.message) for cluster, a in outcomes if isinstance(a, BackstopError)]
    documents = tuple(LaunchedAnswer.of(a, resolves.get(a.cluster, ""), shadow=shadow) for a in launched)
    why = tuple(RefusedLaunch(cluster=cluster, reason=message) for cluster, message in refused)
    parts = partial(_outcome_parts, launched, refused, resolves, shadow=shadow)
    tell(LaunchedMany(launched=documents, refused=why), parts, as_json=as_json)
    if refused:
        raise typer.Exit(1)


def _outcome_parts(
    launched: Sequence[LaunchAnswer], refused: Sequence[tuple[str, str]], resolves: Mapping[str, str], *, shadow: bool
) -> list[RenderableType]:
    from models.lifecycle.command_rows import REASON
    from models.texts import some_of
    from views.words import gpus, line, row, table

    rows = table("CLUSTER", "=STAGE", "=PLAN", "~RESULT")
    for answer in launched:
        plan = answer.plan
        state = "no plan yet" if plan is None else f"open; its plan cuts {gpus(plan.cut_gpus)}"
        row(rows, answer.cluster, answer.stage.value, None if plan is None else plan.hash, state)
    for cluster, message in refused:
        row(rows, cluster, "not launched", None, message, style="red")
    sentence = f"{len(launched)} opened{' (shadow: no quota is written)' if shadow else ''}"
    parts: list[RenderableType] = [
        rows,
        line(),
        line(f"{sentence}, {len(refused)} refused." if refused else f"{sentence}."),
    ]
    if launched:
        names = " ".join(shlex.quote(answer.cluster) for answer in launched)
        parts += [
            line("Nothing changes until the plans are approved. To see them again and approve:"),
            line(f"  backstop approve {names}"),
            *(
                line(f"{some_of([c for c in resolves if resolves[c] == text], 5)}: {text}")
                for text in dict.fromkeys(resolves.values())
            ),
            line(f"Undo: backstop abort {names} {REASON}"),
        ]
    return parts
