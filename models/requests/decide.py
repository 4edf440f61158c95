"""What a request does next: one pure decision, taken again after everything that happens.

Time is taken in before (`advance`, models/requests/reducers.py). How long a try that met something in its way is waited
for before the next one is the workflow's.
"""

from __future__ import annotations

from models.lifecycle.next_actions import Finish, Wait
from models.requests.next_actions import Keep, RequestAction, Write
from models.requests.state import RequestStage, RequestState


def decide(state: RequestState) -> RequestAction:
    """The next action. What has happened is kept first, the end of the request too."""
    if state.outbox:
        return Keep()
    if state.has_ended:
        return Finish()
    if state.stage in (RequestStage.APPROVED, RequestStage.RETURNING):
        return Write()
    return Wait(state.ends_on)
