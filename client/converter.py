"""Encodes and decodes values on the wire, and decides what happens to unreadable ones.

Anyone with access to the server may start a workflow or send it a message by hand. Pydantic's own refusal lists
every fault and repeats the input. For a large input it is larger than an answer may be, and the workflow task that
should carry it fails for ever. So what comes from outside is refused in one sentence. What our own workers say to each
other is retried, because another worker may understand it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, get_args

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter, DefaultFailureConverterWithEncodedAttributes
from temporalio.exceptions import ApplicationError

from client.compression import Zlib
from client.encryption import ENCRYPTED, IN_CLEAR, Encrypted, run_began
from client.payload_keys import VARIABLE, KeyRing
from models.base import in_one_sentence
from models.errors import BadInput, Unavailable
from models.texts import brief

_STARTS = frozenset(
    {
        "models.rollout.messages:RolloutInput",
        "models.fleet.messages:FleetInput",
        "models.requests.messages:RequestInput",
    }
)
"""Inputs with which a workflow starts, and continues as new."""
_LARGE = frozenset(
    {
        "models.fleet.messages:FleetInput",
        "models.fleet.commands:FleetCommandRequest",
        "models.question_base:DeskRequest",
        "models.temporal_names:WatchInput",
    }
)
"""Messages that may name every cluster of a fleet, or have values for each."""
FROM_OUTSIDE = frozenset(
    {
        *_STARTS,
        *_LARGE,
        "models.planning.grants:GrantOrder",
        "models.requests.commands:RequestOrder",
        "models.rollout.commands:CommandRequest",
        "models.rollout.messages:HealthChanged",
    }
)
"""Messages that people and other programs may send. By name, so that a client that only reads answers imports none."""
SMALL_BYTES = 65_536
"""Far more than these messages need, except questions to the desk and a state that a run hands to the next run.

Reading a larger one would only take time, of which a workflow task has little.
"""


_PYDANTIC = PydanticPayloadConverter()


class PayloadConverter(PydanticPayloadConverter):
    """Pydantic's converter, which refuses in one sentence. Errors: ApplicationError of type BadInput."""

    def __init__(self) -> None:
        # Each workflow and each of its tasks makes a converter: all share one and what it has learnt of our types.
        CompositePayloadConverter.__init__(self, *_PYDANTIC.converters.values())

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        _refuse_what_is_hidden(payloads, type_hints)
        if len(payloads) > 1:
            raise _refusal(f"exactly one argument is needed, and {len(payloads)} were given")
        expected = _from_outside(type_hints)
        if expected is None:
            return super().from_payloads(payloads, type_hints)
        encoding, size = payloads[0].metadata.get("encoding", b""), len(payloads[0].data)
        if encoding != b"json/plain":
            raise _refusal(f"not a {expected.__name__}: the encoding is {brief(encoding)}, but must be json/plain")
        continues = name_of(expected) in _STARTS and b'"state":{' in payloads[0].data
        if size > SMALL_BYTES and name_of(expected) not in _LARGE and not continues:
            raise _refusal(f"{size} bytes are too many for a {expected.__name__}: the most is {SMALL_BYTES}")
        try:
            return super().from_payloads(payloads, type_hints)
        except ValidationError as error:
            sentence = f"not a valid {expected.__name__}: {in_one_sentence(error)}"
            if continues:
                # A run that another build continued, with fields that this one does not know. Failing it would end
                # a rollout whose effects stand; so it waits for a worker that understands it.
                raise ValueError(sentence) from None
            raise _refusal(sentence) from None


def _from_outside(type_hints: list[type] | None) -> type | None:
    """Return the model from outside that a handler expects, also for `X | None`; None: it expects no such model."""
    hint: Any = type_hints[0] if type_hints else None
    return next((kind for kind in (hint, *get_args(hint)) if name_of(kind) in FROM_OUTSIDE), None)


def name_of(kind: Any) -> str:
    """Return a type's name with its module."""
    return f"{getattr(kind, '__module__', '')}:{getattr(kind, '__name__', '')}"


def _refusal(sentence: str) -> ApplicationError:
    return ApplicationError(sentence, type=BadInput.__name__)


def _refuse_what_is_hidden(payloads: Sequence[Payload], type_hints: list[type] | None) -> None:
    """Refuse payloads that could not be decrypted, and those in clear that must be encrypted. Source: docs/adr/0058.

    A person's message is refused at once. A workflow waits for its own state, because a worker with the keys may
    come. A client gets Unavailable.
    """
    for payload in payloads:
        expected, began = _from_outside(type_hints), run_began.get()
        if payload.metadata.get("encoding") == ENCRYPTED:
            sentence = (
                "the payload is encrypted with a key that this process does not have for this workflow: give each "
                f"worker and client the same file of payload keys ({VARIABLE})"
            )
            starts = name_of(expected) in _STARTS
        elif since := payload.metadata.get(IN_CLEAR):
            if began is not None and began < datetime.fromisoformat(since.decode()):
                continue
            sentence = f"the payload is not encrypted, but must be: give its sender the payload keys ({VARIABLE})"
            starts = name_of(expected) in _STARTS and b'"state":{' in payload.data
        else:
            continue
        if began is None:
            raise Unavailable(f"Temporal's answer cannot be read: {sentence}")
        if expected is None or starts:
            raise ValueError(sentence)
        raise _refusal(sentence)


data_converter = DataConverter(payload_converter_class=PayloadConverter, payload_codec=Zlib())
"""Every client, worker and replay uses it where payloads are not encrypted."""


def converter_with(ring: KeyRing | None) -> DataConverter:
    """Return the converter that encrypts payloads, and failures' texts, with these keys."""
    if ring is None:
        return data_converter
    return DataConverter(
        payload_converter_class=PayloadConverter,
        payload_codec=Encrypted(ring),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
