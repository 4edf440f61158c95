"""The fleet rollout, of which there is one at a time: launch, command, query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from client.lost_rollout_sentences import ADOPT_FLEET, lost_fleet_sentence, stopped_sentence
from client.lost_rollouts import runs_there, status_there
from client.questions import Questions
from client.workflow_calls import QUERY_FAILED, archiving_refusal, in_time
from models.errors import BackstopError, Refusal
from models.status_questions import FleetKept
from models.temporal_names import FLEET_ID, FLEET_PLAN_QUERY, FLEET_STATUS_QUERY, FLEET_WORKFLOW

if TYPE_CHECKING:
    from models.base import Model
    from models.fleet.archived_state import KeptFleet
    from models.fleet.commands import FleetCommand, FleetCommandRequest
    from models.fleet.messages import FleetCommandAnswer, FleetLaunch, FleetLaunchAnswer, FleetPlan, FleetStatus

_KEPT_SECONDS = 10
_FLEET_SECONDS = 1800
"""The time limit of a fleet's plan, in seconds; one of 1,000 clusters with 100 quotas each takes about a minute."""


class FleetRollouts(Questions):
    async def launch_fleet(self, request: FleetLaunch) -> FleetPlan:
        """Open a fleet rollout, which waits for approval of its plan. Errors: Refusal, Unavailable."""
        answer, _ = await self._past_rehearsal(
            lambda: self._start_fleet(request),
            lambda: self._end_fleet_rehearsal(request),
            lambda: self._fleet_already_open(request),
        )
        if not answer.launched or answer.plan is None:
            await self._archive_fleet_refusal("launch", request.reason, answer.reason)
            raise Refusal(f"no fleet rollout was launched: {answer.reason}")
        return answer.plan

    async def _start_fleet(self, request: FleetLaunch) -> FleetLaunchAnswer:
        """Start the workflow. Errors: WorkflowAlreadyStartedError, those of models.errors."""
        from models.fleet.messages import FleetInput, FleetLaunchAnswer

        return await self._start(
            FLEET_WORKFLOW,
            FleetInput(launch=self._sign(request, "fleet.launch", FLEET_ID)),
            FLEET_ID,
            f"fleet rollout, owner {request.owner}{' (shadow)' if request.shadow else ''}",
            FleetLaunchAnswer,
            "the launch of the fleet rollout",
            _FLEET_SECONDS,
        )

    async def _fleet_already_open(self, request: FleetLaunch, *, rehearsal: bool = False) -> Refusal:
        what = " (a rehearsal that writes no quota)" if rehearsal else ""
        why = f"a fleet rollout{what} is open already, and only one can be open: see `backstop fleet status`"
        await self._archive_fleet_refusal("launch", request.reason, why)
        return Refusal(why)

    async def _end_fleet_rehearsal(self, request: FleetLaunch) -> str:
        """Abort an open rehearsal for a real launch; return its id. Errors: Refusal if it is none."""
        from models.fleet.commands import FleetCommandRequest

        status = await self.open_fleet()
        if request.shadow or status is None or not status.shadow or request.kept is not None:
            raise await self._fleet_already_open(request, rehearsal=status is not None and status.shadow)
        why = f"the rehearsal ends, because the fleet is launched{f': {request.reason}' if request.reason else ''}"
        abort = FleetCommandRequest(actor=request.actor or request.owner, reason=why, undo=True)
        await self.fleet_command("abort", abort)
        await self._rehearsal_is_over(FLEET_ID, status.fleet)
        return status.fleet

    async def fleet_command(self, command: FleetCommand, request: FleetCommandRequest) -> FleetCommandAnswer:
        """Send the command to the fleet rollout. Errors: Refusal with its reason, Unavailable."""
        from models.fleet.messages import FleetCommandAnswer

        what = f"`{command}` for the fleet rollout"
        return await archiving_refusal(
            self._update(FLEET_ID, "fleet", command, request, FleetCommandAnswer, what),
            self._explain_fleet,
            lambda why: self._archive_fleet_refusal(command, request.reason, why, request),
        )

    async def check_fleet_takes(self, command: FleetCommand, request: FleetCommandRequest) -> None:
        """Check that the fleet rollout is there to take the command. Errors: Refusal, archived; Unavailable."""
        from models.fleet.commands import not_now

        try:
            status = await self.fleet_status()
            if why := status.lost or not_now(status, command, rests=status.rests_until is not None):
                raise Refusal(why)
        except Refusal as refused:
            await self._archive_fleet_refusal(command, request.reason, refused.message, request)
            raise

    async def fleet_status(self) -> FleetStatus:
        """Return the fleet rollout's status. Errors: Refusal if there never was one, Unavailable."""
        from models.fleet.messages import FleetStatus

        try:
            status, stopped = await self._query(FLEET_ID, FLEET_STATUS_QUERY, FleetStatus)
        except QUERY_FAILED as error:
            raise await self._explain_fleet(error) from error
        if not stopped or status.stage.has_ended:
            return status
        kept = await self.lost_fleet()
        if kept is None:
            return status.but(lost=stopped_sentence(f"fleet rollout {status.fleet}"), needs="")
        return status.but(lost=lost_fleet_sentence(kept), needs=f"it is lost: {ADOPT_FLEET}")

    async def fleet_plan(self) -> FleetPlan:
        """Return the plan that awaits an approval. Errors: Refusal if there is none, Unavailable."""
        from models.fleet.messages import FleetLaunchAnswer
        from models.fleet.state import FleetStage

        try:
            answer = await self._query_open(FLEET_ID, FLEET_PLAN_QUERY, FleetLaunchAnswer)
        except QUERY_FAILED as error:
            raise await self._explain_fleet(error) from error
        if answer.stage is not FleetStage.PLANNED:
            raise Refusal(f"no plan of the fleet rollout awaits approval: its stage is {answer.stage}")
        if answer.plan is None:
            raise Refusal("the fleet rollout has no plan to show yet: see `backstop fleet status`")
        return answer.plan

    async def lost_fleet(self) -> KeptFleet | None:
        """Return the open fleet rollout that Temporal does not run; None: there is none, or no answer came in time."""
        with self._translate_errors():
            status = await status_there(self._client, FLEET_ID)
        if status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED):
            return None
        kept = await in_time(self.ask(FleetKept()), _KEPT_SECONDS)
        return None if kept is None or kept.stage.has_ended else kept

    async def open_fleet(self) -> FleetStatus | None:
        """Return the status of the open fleet rollout; None: there is none, or it does not answer."""
        try:
            return await self.fleet_status() if await runs_there(self._client, FLEET_ID) else None
        except (RPCError, BackstopError):
            return None

    async def _archive_fleet_refusal(self, command: str, reason: str, why: str, request: Model | None = None) -> None:
        from models.fleet.state import FLEET

        await self._archive_refusal(FLEET, command, reason, why, request)

    async def _explain_fleet(self, error: BaseException) -> BackstopError:
        return await self._explain(error, FLEET_ID, self._why_fleet_gone)

    async def _why_fleet_gone(self, ran: bool) -> BackstopError:
        if (lost := await self.lost_fleet()) is not None:
            return Refusal(lost_fleet_sentence(lost))
        if ran:
            return Refusal("the fleet rollout has ended: launch a new one")
        return Refusal("there is no fleet rollout: launch one with `backstop launch --fleet`")
