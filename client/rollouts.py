"""Rollouts of clusters: launch, command, query, list, audit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from client.answer_models import STALE, AuditRecord
from client.lost_rollout_sentences import adopt_line, as_summary, lost_sentence, stopped_sentence, summary_of
from client.lost_rollouts import find_lost, runs_there
from client.questions import Questions
from client.visibility_query import quote
from client.workflow_calls import QUERY_FAILED, archiving_refusal, in_time
from models.errors import BackstopError, BadInput, Refusal, Unavailable
from models.lifecycle.holds import holds_text
from models.reports.rollout_summary import RolloutSummary
from models.rollout.stages import Command, command_line
from models.status_questions import OpenRollouts, Overview
from models.temporal_names import (
    AHEAD_QUERY,
    NOT_LAUNCHED,
    REQUEST_WORKFLOW,
    ROLLOUT_WORKFLOW,
    STATUS_QUERY,
    SearchName,
    rollout_workflow_id,
)

if TYPE_CHECKING:
    from models.rollout.command_previews import Ahead
    from models.rollout.commands import CommandRequest
    from models.rollout.messages import CommandAnswer, LaunchAnswer, LaunchRequest
    from models.rollout.status_models import RolloutStatus

OVERVIEW_SECONDS = 10
MOST_ASKED = 200
"""Most rollouts that one overview asks; of the others it shows what the ledger last noted."""
_AT_ONCE = 16
"""Most questions to rollouts at the same time."""
_OPENING = "opening"
_BEFORE = (
    "its rollout runs on an earlier version of Backstop, which cannot show what a command changes: see `status`, then "
    "give --yes"
)
_T = TypeVar("_T")


class Rollouts(Questions):
    async def launch(self, request: LaunchRequest) -> LaunchAnswer:
        """Open a rollout, and make its plan. Errors: Refusal with the reason, Unavailable."""
        answer, rehearsal = await self._past_rehearsal(
            lambda: self._start_rollout(request),
            lambda: self._end_rehearsal(request),
            lambda: self._already_open(request),
        )
        if not answer.launched:
            await self._archive_refusal(request.cluster, "launch", request.reason, answer.reason)
            raise Refusal(f"{request.cluster} was not launched: {answer.reason}")
        return answer.model_copy(update={"gave_way": rehearsal}) if rehearsal else answer

    async def _start_rollout(self, request: LaunchRequest) -> LaunchAnswer:
        """Start the workflow. Errors: WorkflowAlreadyStartedError, those of models.errors."""
        from models.rollout.messages import LaunchAnswer, RolloutInput

        workflow_id = rollout_workflow_id(request.cluster)
        return await self._start(
            ROLLOUT_WORKFLOW,
            RolloutInput(launch=self._sign(request, "rollout.launch", workflow_id)),
            workflow_id,
            f"{request.cluster}, owner {request.owner}{' (shadow)' if request.shadow else ''}",
            LaunchAnswer,
            f"the launch of {request.cluster}",
        )

    async def _end_rehearsal(self, request: LaunchRequest) -> str:
        """Abort an open rehearsal for a real launch; return its id. Errors: Refusal if it is none."""
        from models.rollout.commands import CommandRequest

        try:
            status = await self.status(request.cluster)
        except BackstopError:
            raise await self._already_open(request) from None
        if request.shadow or request.adopt or not status.shadow or status.stage.has_ended:
            raise await self._already_open(request)
        why = f"the rehearsal ends, because the cluster is launched{f': {request.reason}' if request.reason else ''}"
        abort = CommandRequest(actor=request.actor or request.owner, reason=why)
        await self.command(request.cluster, Command.ABORT, abort)
        await self._rehearsal_is_over(rollout_workflow_id(request.cluster), status.rollout)
        return status.rollout

    async def _already_open(self, request: LaunchRequest) -> BackstopError:
        ends = False
        try:
            status = await self.status(request.cluster)
            who, ends = f"{status.stage}, {status.rollout} of {status.owner}", status.stage.has_ended
            who += ", a rehearsal that writes no quota" if status.shadow else ""
        except BackstopError:
            who = "it is just being opened"
        line = command_line("status", request.cluster)
        why = f"a rollout of {request.cluster} is open already ({who}): see `{line}`"
        if ends:
            why = f"a rollout of {request.cluster} has just ended ({who}), and its end is not recorded yet: try again"
        await self._archive_refusal(request.cluster, "launch", request.reason, why)
        return Refusal(why)

    async def command(self, cluster: str, command: Command, request: CommandRequest) -> CommandAnswer:
        """Send the command to the cluster's rollout. Errors: Refusal with the stage table's reason, Unavailable."""
        from models.rollout.messages import CommandAnswer

        what, workflow_id = f"`{command}` for {cluster}", rollout_workflow_id(cluster)
        return await archiving_refusal(
            self._update(workflow_id, "rollout", command, request, CommandAnswer, what),
            lambda error: self._explain_rollout(error, cluster),
            lambda why: self._archive_refusal(cluster, command.value, request.reason, why, request),
        )

    async def status(self, cluster: str) -> RolloutStatus:
        """Return the rollout's status. Errors: Refusal if the cluster never had a rollout, Unavailable."""
        from models.rollout.status_models import RolloutStatus

        status, stopped = await self._explain_failure(
            cluster, self._query(rollout_workflow_id(cluster), STATUS_QUERY, RolloutStatus)
        )
        if not stopped or status.stage.has_ended:
            return status
        for row in await self.lost(cluster):
            return status.but(lost=lost_sentence(row), needs=f"it is lost: {adopt_line(cluster)}")
        return status.but(lost=stopped_sentence(f"the rollout of {cluster}"), needs="")

    async def could_act(self, cluster: str) -> list[str]:
        """Return who could give the command that the rollout needs, by the access file; none without a file.

        Errors: as `status`.
        """
        from client.who_could_act import could_act_now

        return list(await could_act_now(self.ask, await self.status(cluster)))

    async def who_could(self, needs: str, cluster: str = "", subject: str = "") -> list[str]:
        """Return who could give the first command in a status's `needs`, as the access file names them.

        Without a file it names nobody. `cluster` empty: the command is the fleet's. `subject`: the request that it
        decides.
        """
        from client.who_could_act import who_could_give

        return list(await who_could_give(self.ask, needs, cluster, subject))

    async def ahead(self, cluster: str) -> Ahead:
        """Return what each command to the rollout would change. Errors: as `status`, and Refusal where it has ended."""
        from models.rollout.command_previews import Ahead

        ahead = await self._explain_failure(cluster, self._query_open(rollout_workflow_id(cluster), AHEAD_QUERY, Ahead))
        if ahead.stage.has_ended:
            raise Refusal(f"the rollout of {cluster} has ended ({ahead.stage}); launch a new one")
        return ahead

    async def _explain_failure(self, cluster: str, answer: Awaitable[_T]) -> _T:
        try:
            return await answer
        except QUERY_FAILED as error:
            if f"'{AHEAD_QUERY}'" in str(error):
                raise Unavailable(f"{cluster}: {_BEFORE}") from None
            if str(error).startswith(NOT_LAUNCHED):
                for row in await self.lost(cluster):
                    raise Refusal(lost_sentence(row)) from None
                raise Refusal(f"{cluster}: {error}") from None
            raise await self._explain_rollout(error, cluster) from error

    async def _explain_rollout(self, error: BaseException, cluster: str) -> BackstopError:
        return await self._explain(error, rollout_workflow_id(cluster), partial(self._why_gone, cluster))

    async def _why_gone(self, cluster: str, ran: bool) -> BackstopError:
        """Say why no rollout runs: BadInput for a cluster that the ledger does not have, where no launch would help."""
        for row in await self.lost(cluster):
            return Refusal(lost_sentence(row))
        from models.questions import FactsOf

        try:
            await asyncio.wait_for(self.ask(FactsOf(cluster=cluster)), OVERVIEW_SECONDS)
        except BadInput as unknown:
            return unknown
        except (BackstopError, TimeoutError):
            pass  # whether the ledger has the cluster is not known
        return Refusal(f"the rollout of {cluster} has ended; launch a new one" if ran else _never(cluster))

    async def rollouts(self) -> list[RolloutSummary]:
        """Return the newest rollout of each cluster, open ones first, then by name."""
        newest: dict[str, RolloutSummary] = {}
        query = f"WorkflowType = '{ROLLOUT_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
        try:
            async for run in self._client.list_workflows(query):
                summary = _summary(run)
                if not summary.open and summary.stage == _OPENING:
                    continue  # its launch was refused: there never was a rollout
                other = newest.get(summary.cluster)
                if other is None or other.started < summary.started:
                    newest[summary.cluster] = summary
        except RPCError as error:
            raise self._translate(error) from error
        return sorted(newest.values(), key=lambda summary: (not summary.open, summary.cluster))

    async def lost(self, cluster: str = "") -> list[Overview]:
        """Return open rollouts that Temporal does not run; none if no answer comes in time."""
        with self._translate_errors():
            if cluster and await runs_there(self._client, rollout_workflow_id(cluster)):
                return []
            rows = await in_time(self.ask(OpenRollouts()), OVERVIEW_SECONDS) or ()
            lost_rows = await find_lost(self._client, [row for row in rows if cluster in ("", row.cluster)])
            if not lost_rows:
                return []
            # One that ended between the two questions is nothing that could be taken over.
            again = await in_time(self.ask(OpenRollouts()), OVERVIEW_SECONDS)
            still = {row.rollout for row in again or () if not row.ended}
            return [row for row in lost_rows if row.rollout in still]

    async def overview(self) -> list[RolloutSummary]:
        """Return the rollouts, each open one with what it needs from a person if a worker answers in time.

        They include lost ones, and running ones that Temporal has not listed yet. Where Temporal's list and the
        ledger differ, the rollout itself is asked.
        """
        summaries = await self.rollouts()
        rows = await in_time(self.ask(OpenRollouts(could=True)), OVERVIEW_SECONDS)
        if rows is None:
            return summaries
        in_ledger = {(row.cluster, not row.ended): row for row in rows}
        with_needs = [_with_ledger(summary, in_ledger.get((summary.cluster, summary.open))) for summary in summaries]
        lost = await self._find_lost_among(with_needs, rows)
        listed = {summary.cluster for summary in (*lost, *with_needs) if summary.open}
        unlisted = [summary_of(row) for row in rows if not row.ended and row.cluster not in listed]
        elsewhere = {one.cluster for one in (*lost, *unlisted)}
        with_needs = [*unlisted, *(summary for summary in with_needs if summary.cluster not in elsewhere)]
        now = self._now()
        doubted = [
            summary.cluster
            for summary in with_needs
            if summary.open
            and (
                summary.needs
                or summary.unbacked_gpus is None
                or ((row := in_ledger.get((summary.cluster, True))) is not None and row.stage != summary.stage)
                or now - (summary.health_at or summary.started) >= STALE
            )
        ]
        answers = await self.ask_rollouts(doubted[:MOST_ASKED], OVERVIEW_SECONDS)
        asked = [
            _with_status(summary, answers.get(summary.cluster), now) if summary.open else summary
            for summary in with_needs
        ]
        return sorted([*lost, *asked], key=lambda summary: (not summary.open, summary.cluster))

    async def _find_lost_among(
        self, summaries: Sequence[RolloutSummary], rows: Sequence[Overview]
    ) -> list[RolloutSummary]:
        by_cluster = {summary.cluster: summary for summary in summaries}
        with self._translate_errors():
            lost = await find_lost(self._client, rows, {summary.cluster for summary in summaries if summary.open})
        return [as_summary(row, by_cluster.get(row.cluster)) for row in lost]

    async def health_at(self, cluster: str) -> datetime | None:
        """Return when the ledger last received health of a cluster in rollout; None: never, or no answer in time."""
        rows = await in_time(self.ask(OpenRollouts()), OVERVIEW_SECONDS)
        return next((row.health_at for row in rows or () if row.cluster == cluster and not row.ended), None)

    async def ask_rollouts(self, clusters: Sequence[str], seconds: float) -> dict[str, RolloutStatus | None]:
        """Return the status of each open rollout; None for a rollout that does not answer within `seconds`."""
        turn, time = asyncio.Semaphore(_AT_ONCE), asyncio.get_running_loop().time

        async def ask(cluster: str) -> RolloutStatus | None:
            async with turn:
                return await in_time(self.status(cluster), max(0.0, ends - time()))

        ends = time() + seconds
        return dict(zip(clusters, await asyncio.gather(*map(ask, clusters)), strict=True))

    async def audit(self, cluster: str) -> list[AuditRecord]:
        """Return the history of every run of the cluster's rollouts and quota requests, in order of time.

        The outcome of notices that waited in the ledger is only in the archive; without a worker they read as waiting.
        """
        from client.audit import WAITS, add_outcomes, audit_of

        own = rollout_workflow_id(cluster)
        rollouts = f"WorkflowType = '{ROLLOUT_WORKFLOW}' AND WorkflowId = {quote(own)}"
        requests = f"WorkflowType = '{REQUEST_WORKFLOW}' AND {SearchName.CLUSTER} = {quote(cluster)}"
        try:
            asked = [(run.id, run.run_id) async for run in self._client.list_workflows(requests)]
            runs = sorted(
                [run async for run in self._client.list_workflows(rollouts)], key=lambda execution: execution.start_time
            )
            ids = [*asked, *((own, run.run_id) for run in runs)]
            try:
                newest = own, (await self._client.get_workflow_handle(own).describe()).run_id
                ids += [] if newest in ids else [newest]
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                if not asked:
                    raise Refusal(_never(cluster)) from None
            histories = (await self._client.get_workflow_handle(id_, run_id=run).fetch_history() for id_, run in ids)
            records = await audit_of(histories, self._client.data_converter)
        except RPCError as error:
            raise self._translate(error) from error
        if any(record.data.get(WAITS) for record in records):
            with contextlib.suppress(BackstopError, TimeoutError):
                rows, _ = await asyncio.wait_for(self.read_archive(cluster), OVERVIEW_SECONDS)
                return add_outcomes(records, (row.entry for row in rows))
        return sorted(records, key=lambda record: record.at) if asked else records


def _never(cluster: str) -> str:
    return f"there is no rollout of {cluster}: launch one with `{command_line('launch', cluster)}`"


def _with_ledger(summary: RolloutSummary, row: Overview | None) -> RolloutSummary:
    if row is None:
        return summary.model_copy(update={"needs": "", "health_at": None, "held": None if summary.open else ""})
    names = ("needs", "held", "holds", "health_at", "shadow", "could")
    update: dict[str, Any] = {name: getattr(row, name) for name in names}
    if row.shadow:
        update |= {"unbacked_gpus": None, "would_unbacked_gpus": summary.unbacked_gpus}
    return summary.model_copy(update=update)


def _with_status(summary: RolloutSummary, status: RolloutStatus | None, now: datetime) -> RolloutSummary:
    """Return the summary with what the rollout itself reports: the ledger is not updated as time alone passes."""
    needs = summary.needs if status is None else status.needs
    stale_after = STALE if status is None or status.stale_after is None else status.stale_after
    silence = ""
    if summary.health_at is None:
        silence = "no health is known"
    elif now - summary.health_at >= stale_after:
        silence = f"no health since {summary.health_at:%Y-%m-%d %H:%MZ}"
    if silence and not needs:
        needs = f"{silence}: mend the health source"
    if status is None:
        held = "; ".join(text for text in (summary.held, f"unknown health: {silence}" * bool(silence)) if text)
        return summary.model_copy(update={"needs": needs, "held": held or summary.held})
    could = summary.could if needs == summary.needs else ()  # who could give what the ledger noted, and it alone
    update: dict[str, Any] = {"needs": needs, "could": could, "asked_at": now, "stage": status.stage.value}
    update |= {"held": holds_text(status.holds), "holds": status.holds}
    if summary.unbacked_gpus is None:
        update |= {"unbacked_gpus": status.phantom_gpus, "wave": summary.wave or status.wave}
    if status.shadow:
        would = None if status.would is None else status.would.phantom_gpus
        update |= {"unbacked_gpus": status.phantom_gpus, "would_unbacked_gpus": would}
    return summary.model_copy(update=update)


def _summary(run: WorkflowExecution) -> RolloutSummary:
    attributes = {pair.key.name: pair.value for pair in run.typed_search_attributes}
    return RolloutSummary(
        cluster=str(attributes.get(SearchName.CLUSTER, run.id.removeprefix("rollout/"))),
        stage=str(attributes.get(SearchName.STAGE, _OPENING)),
        wave=str(attributes.get(SearchName.WAVE, "")),
        owner=str(attributes.get(SearchName.OWNER, "")),
        unbacked_gpus=int(attributes.get(SearchName.UNBACKED, 0)),
        started=run.start_time,
        closed=run.close_time,
        open=run.status is WorkflowExecutionStatus.RUNNING,
    )
