"""Bring-ups: start, command, query."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from functools import partial
from typing import TYPE_CHECKING

from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from client.lost_rollout_sentences import lost_bringup_sentence, stopped_sentence
from client.lost_rollouts import runs_there
from client.questions import Questions
from client.workflow_calls import QUERY_FAILED, archiving_refusal
from models.errors import BackstopError, Refusal
from models.temporal_names import BRINGUP_WORKFLOW, STATUS_QUERY, bringup_workflow_id

if TYPE_CHECKING:
    from models.bringup.commands import BringupOrder
    from models.bringup.messages import BringupAnswer, BringupCommandAnswer, BringupRow, BringupStart
    from models.bringup.stages import BringupCommand
    from models.bringup.status import BringupStatus

_KEPT_SECONDS = 10


class Bringups(Questions):
    async def bring_up(self, start: BringupStart) -> BringupAnswer:
        """Start the bring-up, which goes on by itself. Errors: Refusal with its reason, Unavailable."""
        from models.bringup.messages import BringupAnswer, BringupInput

        cluster = start.entry.cluster
        workflow_id = bringup_workflow_id(cluster)
        try:
            answer = await self._start(
                BRINGUP_WORKFLOW,
                BringupInput(start=self._sign(start, "bringup.add", workflow_id)),
                workflow_id,
                f"bring-up of {cluster} with recipe {start.recipe.name}, entered by {start.actor}",
                BringupAnswer,
                f"the bring-up of {cluster}",
            )
        except WorkflowAlreadyStartedError:
            raise _already_begun(cluster) from None
        if not answer.begun:
            raise Refusal(answer.reason)
        return answer

    async def check_not_brought_up(self, cluster: str) -> None:
        """Check that Temporal runs no bring-up of the cluster. Errors: Refusal, Unavailable."""
        try:
            if await runs_there(self._client, bringup_workflow_id(cluster)):
                raise _already_begun(cluster)
        except RPCError as error:
            raise self._translate(error) from error

    async def bringup_command(self, cluster: str, command: BringupCommand, order: BringupOrder) -> BringupCommandAnswer:
        """Send the command to the cluster's bring-up. Errors: Refusal with its reason, Unavailable."""
        from models.bringup.messages import BringupCommandAnswer

        what, workflow_id = f"{command} for the bring-up", bringup_workflow_id(cluster)
        named = f"`{command}` for the bring-up of {cluster}"
        return await archiving_refusal(
            self._update(workflow_id, "bringup", command, order, BringupCommandAnswer, named),
            lambda error: self._explain_bringup(error, cluster),
            lambda why: self._archive_refusal(cluster, what, order.reason, why, order),
        )

    async def bringup_status(self, cluster: str) -> BringupStatus:
        """Return the bring-up's status. Errors: Refusal if the cluster never had a bring-up, Unavailable."""
        from models.bringup.status import BringupStatus

        try:
            status, stopped = await self._query(bringup_workflow_id(cluster), STATUS_QUERY, BringupStatus)
        except QUERY_FAILED as error:
            raise await self._explain_bringup(error, cluster) from error
        if not stopped or status.stage.has_ended:
            return status
        lost = [lost_bringup_sentence(row) for row in await self._open_bringups() if row.cluster == cluster]
        return status.but(lost=lost[0] if lost else stopped_sentence(f"the bring-up of {cluster}"), needs="")

    async def give_up_bringup(self, cluster: str, reason: str) -> BringupRow:
        """Close a bring-up that Temporal has lost; what it made stays. Errors: Refusal, Unavailable."""
        from models.questions import GiveUpBringup

        if all(row.cluster != cluster for row in await self._open_bringups()):
            raise Refusal(f"the ledger has no open bring-up of {cluster}")
        if await runs_there(self._client, bringup_workflow_id(cluster)):
            line = f"backstop bringup cancel {shlex.quote(cluster)}"
            raise Refusal(
                f"Temporal still runs the bring-up of {cluster}: end it with `{line}`, which tears down what it made"
            )
        return await self.ask(GiveUpBringup(cluster=cluster, reason=reason))

    async def _open_bringups(self) -> tuple[BringupRow, ...]:
        from models.questions import BringupsOf

        return await self.ask(BringupsOf())

    async def _explain_bringup(self, error: BaseException, cluster: str) -> BackstopError:
        return await self._explain(error, bringup_workflow_id(cluster), partial(self._why_bringup_gone, cluster))

    async def _why_bringup_gone(self, cluster: str, ran: bool) -> BackstopError:
        with contextlib.suppress(BackstopError, TimeoutError):
            for row in await asyncio.wait_for(self._open_bringups(), _KEPT_SECONDS):
                if row.cluster == cluster:
                    return Refusal(lost_bringup_sentence(row))
        if ran:
            return Refusal(f"the bring-up of {cluster} has ended: see `backstop bringup status {shlex.quote(cluster)}`")
        return Refusal(f"{cluster} is not being brought up: enter it with `backstop bringup add`")


def _already_begun(cluster: str) -> Refusal:
    return Refusal(f"{cluster} is already being brought up: see `backstop bringup status {shlex.quote(cluster)}`")
