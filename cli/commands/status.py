"""`backstop status`: the fleet's rollouts on one screen, or one in full."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

from cli.completion_names import note_holds, note_stages
from cli.lazy import command
from cli.lazy_models import import_lightly
from cli.ledger_fallback import LastWord, ask_or_read
from cli.list_options import Form, Listing, field_of, listed
from cli.options import LOOK, Actor, ClusterOrAll, actor_of, flag, opt
from cli.session import or_nobody
from models.errors import BadInput, Unavailable
from models.rollout.stages import Stage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.json_answers_status import RolloutsAnswer
    from client.answer_models import Check
    from client.backstop import Backstop
    from models.fleet.messages import FleetStatus
    from models.reports.rollout_summary import RolloutSummary
    from models.requests.state import RequestState
    from models.rollout.status_models import RolloutStatus


_T = TypeVar("_T")
_NONE_OPEN = "The ledger has no open rollout."
_UNKNOWN = ("wave", "unbacked_gpus", "would_unbacked_gpus", "held")
"""Fields that the ledger does not keep."""


@command(
    LOOK,
    "backstop status",
    "backstop status h100-worked",
    "backstop status --filter 'stage=roll*' --sort -unbacked_gpus -o wide",
    "backstop status --needs -o name",
)
@listed
def status(
    cluster: ClusterOrAll = "",
    stage: Annotated[str, opt("STAGE", "Only rollouts in this stage, such as stuck.")] = "",
    wave: Annotated[str, opt("TIER", "Only rollouts of this wave, such as busy.")] = "",
    owner: Annotated[str, opt("NAME", "Only this owner's rollouts.")] = "",
    needs: Annotated[bool, flag("--needs", "Only rollouts that need a person.")] = False,
    at_risk: Annotated[bool, flag("--at-risk", "Only rollouts with quota that lacks healthy GPUs.")] = False,
    held: Annotated[bool, flag("--held", "Only rollouts on hold.")] = False,
    only_open: Annotated[bool, flag("--open", "Only rollouts that have not ended.")] = False,
    every: Annotated[bool, flag("--all", "Show a line for each rollout, however many there are.")] = False,
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """Show where rollouts are: the fleet on one screen, or one rollout in full.

    The fleet: stages and waves, what needs a person, what is at risk or on hold; with a filter, a line for each
    rollout. In full: what it waits for and until when, holds, and every team's quota with the healthy GPUs behind it.
    """
    chosen = Filters(stage, wave, owner, needs, at_risk, held, only_open)
    options = [*chosen.options, *(["--all"] if every else []), *how.options]
    if cluster and options:
        raise BadInput(f"{options[0]} is given together with CLUSTER {cluster!r}: give one of them")
    _one_of("--stage", stage, [stage.value for stage in Stage])
    import_lightly()
    if wave:
        from models.cluster.policy import AFTER_ALL, TIERS

        _one_of("--wave", wave, [*TIERS, AFTER_ALL])
    if cluster:
        _show_one(cluster, actor_of(actor), how)
    else:
        _show_all(chosen, bool(options), actor_of(actor), how)


@dataclass(frozen=True)
class Filters:
    """A filter of rollouts; an empty field filters nothing."""

    stage: str
    wave: str
    owner: str
    needs: bool
    at_risk: bool
    held: bool
    only_open: bool

    @property
    def options(self) -> list[str]:
        """The filter's options that were given, in this order."""
        options = ("--stage", "--wave", "--owner", "--needs", "--at-risk", "--held", "--open")
        return [option for option, value in zip(options, astuple(self), strict=True) if value]

    def leave(self, one: RolloutSummary) -> bool:
        return (
            self.stage in ("", one.stage)
            and self.wave in ("", one.wave)
            and self.owner in ("", one.owner)
            and not (self.needs and not one.needs)
            and not (self.at_risk and not (one.unbacked_gpus and one.open))
            and not (self.held and not (one.held and one.open))
            and not (self.only_open and not one.open)
        )


def _show_one(cluster: str, person: str, how: Listing) -> None:
    from views.overview import watch_parts
    from views.status import status_parts

    answer = ask_or_read(
        person, lambda door: _with_watch(door, _with_requests(door, cluster, how.for_people), how.for_people)
    )
    if isinstance(answer, LastWord):
        _show_last_word_of(cluster, answer, how)
        return
    (rollout, requests, source_at, could, could_lift), watching = answer

    def parts() -> list[RenderableType]:
        watched = [] if rollout.stage.has_ended else watch_parts(watching)
        shown = status_parts(rollout, source_at=source_at, could=could, could_lift=could_lift)
        return [*shown, *_requests(requests), *watched]

    note_holds(cluster, [hold.id for hold in (*rollout.holds, *rollout.recorded_objections)])
    how.tell(lambda: rollout, parts, [rollout.cluster])


def _show_all(filters: Filters, chosen: bool, person: str, how: Listing) -> None:
    """Show the rollouts. `chosen`: a person filtered them, and sees a line for each."""
    from models.reports.rollout_summary import RolloutSummary
    from views.overview import NEEDS_UNKNOWN, overview_parts, unknown_holds_text, watch_parts
    from views.words import line, none_of

    answer = ask_or_read(person, lambda door: _with_watch(door, _with_fleet(door, how.for_people), how.for_people))
    if isinstance(answer, LastWord):
        _show_last_word(filters, answer, how)
        return
    (rows, fleet, requests), watching = answer
    note_stages({row.cluster: "" for row in rows} | {row.cluster: row.stage for row in rows if row.open})
    lines = tuple(how.rows(filter(filters.leave, rows), RolloutSummary))

    def parts() -> list[RenderableType]:
        if rows and not lines:
            unknown = filters.needs and any(row.open and row.needs is None for row in rows)
            none = line(NEEDS_UNKNOWN) if unknown else none_of(len(rows), "rollout")
            unheld = unknown_holds_text(rows) if filters.held else ""
            return [line((unheld, "yellow")) if unheld else none, *watch_parts(watching)]
        first: list[RenderableType] = []
        if fleet is not None and not chosen:
            first = [line((fleet, "red")) if isinstance(fleet, str) else _fleet_line(fleet), line()]
        overview = overview_parts(lines, datetime.now(UTC), all_lines=chosen)
        return [*first, *overview, *_show_waiting(requests), *(watch_parts(watching) if rows else [])]

    how.tell(lambda: _document(lines), parts, [rollout.cluster for rollout in lines])


# What is seldom shown is imported when it is: this command is run every few seconds, by people and by scripts.


def _document(lines: Sequence[RolloutSummary]) -> RolloutsAnswer:
    from cli.json_answers_status import RolloutsAnswer

    return RolloutsAnswer(rollouts=tuple(lines))


def _fleet_line(fleet: FleetStatus) -> RenderableType:
    from views.fleet_rollout import fleet_line

    return fleet_line(fleet)


def _show_waiting(requests: Sequence[RequestState]) -> list[RenderableType]:
    if not requests:
        return []
    from views.request import waiting_line

    return waiting_line(requests)


def _requests(requests: Sequence[RequestState]) -> list[RenderableType]:
    if not requests:
        return []
    from views.request import request_lines

    return request_lines(requests)


def _show_last_word(filters: Filters, word: LastWord, how: Listing) -> None:
    """Show the ledger's last rows where no worker answers. Errors: Unavailable for a filter beyond the ledger."""
    from cli.json_answers_status import RolloutsAnswer
    from cli.output import complain
    from client.lost_rollout_sentences import summary_of
    from models.reports.rollout_summary import RolloutSummary
    from views.overview import overview_parts
    from views.words import line, none_of

    _refuse_unknown(filters, word, how)
    lines = tuple(how.rows(filter(filters.leave, map(summary_of, word.rollouts)), RolloutSummary))
    if how.form is Form.NAME:
        complain(word.sentence)

    def parts() -> list[RenderableType]:
        head = line((word.sentence, "red"))
        if not lines:
            return [head, none_of(len(word.rollouts), "open rollout") if word.rollouts else line(_NONE_OPEN)]
        return [head, line(), *overview_parts(lines, datetime.now(UTC), all_lines=True)]

    how.tell(
        lambda: RolloutsAnswer(rollouts=lines, ledger_word_at=word.at), parts, [rollout.cluster for rollout in lines]
    )


def _refuse_unknown(filters: Filters, word: LastWord, how: Listing) -> None:
    """Refuse a filter by wave, unbacked GPUs or holds: only Temporal, the rollouts and a worker know them."""
    asked = ["--wave"] * bool(filters.wave) + ["--at-risk"] * filters.at_risk + ["--held"] * filters.held
    asked += [f"--filter {text}" for text in how.filters if field_of(text) in _UNKNOWN]
    if asked:
        raise Unavailable(
            f"{word.sentence} Waves, unbacked GPUs and holds are unknown meanwhile, so {asked[0]} cannot be used."
        )


def _show_last_word_of(cluster: str, word: LastWord, how: Listing) -> None:
    """Show the ledger's last row of a cluster. Errors: Unavailable for JSON, which only the rollout itself can fill."""
    from cli.output import show
    from views.words import line, moment

    row = next((row for row in word.rollouts if row.cluster == cluster), None)
    what = "no open rollout" if row is None else f"rollout {row.rollout} in stage {row.stage}"
    has = f"In the ledger, {cluster} has {what}."
    if not how.for_people:
        raise Unavailable(f"{word.sentence} {has}")
    head = [line((word.sentence, "red")), line()]
    if row is None:
        show(*head, line(has))
        return
    shadow = " (shadow)" if row.shadow else ""
    show(
        *head,
        line(
            (row.cluster, "bold"), f": {row.stage}{shadow}, {row.rollout} of {row.owner}, since {moment(row.opened_at)}"
        ),
        line(f"Health as of {moment(row.health_at)}."),
        *([line(("Needs: ", "yellow"), row.needs)] if row.needs else []),
    )


async def _with_watch(door: Backstop, answer: Awaitable[_T], shown: bool) -> tuple[_T, Check | None]:
    """Return the answer and, for people, the check of the watch; JSON has no place for it."""
    return await answer, await door.watch() if shown else None


async def _with_fleet(
    door: Backstop, shown: bool
) -> tuple[list[RolloutSummary], FleetStatus | str | None, list[RequestState]]:
    """Return the overview and, for people, the open fleet rollout and requests; JSON has other commands for them."""
    rollouts = await door.overview()
    if not shown:
        return rollouts, None, []
    return rollouts, await door.open_fleet() or await _lost_fleet(door), await door.open_requests()


async def _lost_fleet(door: Backstop) -> str | None:
    from client.lost_rollout_sentences import lost_fleet_sentence

    lost = await door.lost_fleet()
    return None if lost is None else f"Lost: {lost_fleet_sentence(lost)}"


async def _with_requests(
    door: Backstop, cluster: str, shown: bool
) -> tuple[RolloutStatus, list[RequestState], datetime | None, list[str], dict[str, str]]:
    """Return the status and, for people, its requests, when health was read, who could act, and lift each hold."""
    from views.status import liftable_beside_needs

    status = await door.status(cluster)
    if not shown:
        return status, [], None, [], {}
    requests = await door.open_requests(cluster)
    if status.stage.has_ended:
        return status, requests, None, [], {}
    could = await or_nobody(door.could_act(cluster)) if status.needs else []
    could_lift = dict[str, str]()
    if liftable_beside_needs(status):
        from client.who_could_act import who_could_open

        could_lift = (await who_could_open(door.who_could, status)).lifts
    return status, requests, await door.health_at(cluster), could, could_lift


def _one_of(option: str, text: str, values: Sequence[str]) -> None:
    if text and text not in values:
        raise BadInput(f"{option} must be one of {', '.join(values)}, not {text!r}")
