"""The next action of a request: one pure decision, taken again after every event.

`advance` (models/requests/reducers.py) applies the time before. The workflow decides how long to wait after a try that
met an obstacle.
"""

from __future__ import annotations

from models.lifecycle.workflow_actions import Finish, Wait
from models.requests.state import RequestStage, RequestState
from models.requests.workflow_actions import Keep, RequestAction, Write


def decide(state: RequestState) -> RequestAction:
    """Return the next action. The state is kept first, also at the end of the request."""
    if state.outbox:
        return Keep()
    if state.has_ended:
        return Finish()
    if state.stage in (RequestStage.APPROVED, RequestStage.RETURNING):
        return Write()
    return Wait(state.ends_on)
