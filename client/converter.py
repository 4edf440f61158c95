"""How values cross the wire, and what becomes of those that we cannot read.

Anyone with access to the server may start a workflow or send it a message by hand. Pydantic's own refusal lists
every fault and repeats what was given: of a large input it is larger than an answer may be, and the workflow
task that should carry it fails for ever. So what comes from outside is refused in one sentence. What our own
workers say to each other is left to be retried: another worker may understand it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter
from temporalio.exceptions import ApplicationError

from client.compression import Zlib
from models.base import brief, in_one_sentence
from models.errors import BadInput
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetInput
from models.planning.grants import GrantOrder
from models.questions import DeskRequest
from models.requests.commands import RequestOrder
from models.requests.messages import RequestInput
from models.rollout.commands import CommandRequest
from models.rollout.messages import HealthChanged, RolloutInput
from models.wire import WatchInput

FROM_OUTSIDE = (
    *(RolloutInput, CommandRequest, HealthChanged, DeskRequest, WatchInput, FleetInput, FleetCommandRequest),
    *(RequestInput, RequestOrder, GrantOrder),
)
"""What people and other programs may send."""


_LARGE = (DeskRequest, FleetInput, FleetCommandRequest, WatchInput)
"""They may name every cluster of a fleet, or say something of each."""
SMALL_BYTES = 65_536
"""Far more than any of these takes, but for what the desk is asked and a state that a run hands to the next.

Reading on would only take time, which a workflow task has little of.
"""


_PYDANTIC = PydanticPayloadConverter()


class PayloadConverter(PydanticPayloadConverter):
    """Pydantic's, with a sentence for what is refused. Errors: ApplicationError of type BadInput."""

    def __init__(self) -> None:
        # Each workflow and each of its tasks makes a converter: all share one and what it has learnt of our types.
        CompositePayloadConverter.__init__(self, *_PYDANTIC.converters.values())

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        if len(payloads) > 1:
            raise _refused(f"one argument is taken here, and {len(payloads)} were given")
        expected = _from_outside(type_hints)
        if expected is None:
            return super().from_payloads(payloads, type_hints)
        encoding, size = payloads[0].metadata.get("encoding", b""), len(payloads[0].data)
        if encoding != b"json/plain":
            raise _refused(f"this is no {expected.__name__}: its encoding is {brief(encoding)}, and must be json/plain")
        continues = expected in (RolloutInput, FleetInput, RequestInput) and b'"state":{' in payloads[0].data
        if size > SMALL_BYTES and expected not in _LARGE and not continues:
            raise _refused(f"{size} bytes are no {expected.__name__}: at most {SMALL_BYTES} are taken")
        try:
            return super().from_payloads(payloads, type_hints)
        except ValidationError as error:
            sentence = f"this is no {expected.__name__}: {in_one_sentence(error)}"
            if continues:
                # A run that another build continued, with fields that this one does not know. Failing it would end
                # a rollout whose effects stand; so it waits for a worker that understands it.
                raise ValueError(sentence) from None
            raise _refused(sentence) from None


def _from_outside(type_hints: list[type] | None) -> type | None:
    """The model from outside that is expected; a handler that takes it or nothing gets it or nothing."""
    hint: Any = type_hints[0] if type_hints else None
    return next((model for model in FROM_OUTSIDE if model is hint or model in get_args(hint)), None)


def _refused(sentence: str) -> ApplicationError:
    return ApplicationError(sentence, type=BadInput.__name__)


data_converter = DataConverter(payload_converter_class=PayloadConverter, payload_codec=Zlib())
"""Of every client, worker and replay."""
