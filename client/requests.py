"""Requests for more quota: start, command, query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.exceptions import WorkflowAlreadyStartedError

from client.questions import Questions
from client.workflow_calls import archiving_refusal, in_time
from models.errors import BackstopError, Refusal
from models.status_questions import RequestsOf
from models.temporal_names import REQUEST_WORKFLOW, request_workflow_id
from models.texts import count_text

if TYPE_CHECKING:
    from models.requests.commands import RequestCommand, RequestOrder
    from models.requests.state import QuotaAsk, RequestState

_BESIDE_SECONDS = 10
"""The longest wait for an answer that is only shown beside another one."""


class QuotaRequests(Questions):
    async def request(self, ask: QuotaAsk) -> RequestState:
        """Ask for more quota: the request waits for an owner, or is refused. Errors: Refusal for an unknown quota."""
        from models.requests.messages import RequestInput
        from models.requests.state import RequestState

        workflow_id = request_workflow_id(ask.request)
        try:
            return await self._start(
                REQUEST_WORKFLOW,
                RequestInput(ask=self._sign(ask, "request.ask", workflow_id)),
                workflow_id,
                f"{count_text(ask.gpus, 'more GPU')} for {ask.team} in {ask.cluster}, asked by {ask.actor}",
                RequestState,
                f"request {ask.request}",
            )
        except WorkflowAlreadyStartedError:
            raise Refusal(f"request {ask.request} already exists: choose another id") from None

    async def decide_request(self, request: str, command: RequestCommand, order: RequestOrder) -> RequestState:
        """Send the command to the request. Errors: Refusal with its reason, Unavailable."""
        from models.questions import OneRequest
        from models.requests.state import RequestState

        what, workflow_id = f"{command} for request {request}", request_workflow_id(request)

        async def why_gone(_: bool) -> BackstopError:
            state = await self.ask(OneRequest(request=request))
            return Refusal(f"request {request} is {state.stage}: {state.said}")

        async def archive(why: str) -> None:
            cluster = (await self.ask(OneRequest(request=request))).ask.cluster
            await self._archive_refusal(cluster, what, order.reason, why, order)

        return await archiving_refusal(
            self._update(workflow_id, "request", command, order, RequestState, f"`{command}` for request {request}"),
            lambda error: self._explain(error, workflow_id, why_gone),
            archive,
        )

    async def open_requests(self, cluster: str = "") -> list[RequestState]:
        """Return the requests that wait or whose grant will end; none if no worker answers in time."""
        return list(await in_time(self.ask(RequestsOf(cluster=cluster)), _BESIDE_SECONDS) or ())
