"""The codec that encrypts payloads, where keys are configured. Source: docs/secrets.md; docs/adr/0058.

After compression: AES-256-GCM with a key of the workflow's own, derived from one of the ring. The key's id and the
workflow's stand in the payload's metadata and are authenticated with it: no workflow reads another's.

An unreadable payload is not an error here: an error would fail the workflow task that carries it, for ever. The payload
stays as it is, and client/converter.py decides by the expected type. A payload in clear is marked, and read only in
runs that began before encryption did: for a workflow the converter knows that by `run_began`, for an activity its
interceptor does (workers/interceptors.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Self

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from client.compression import smaller, unfold
from client.payload_keys import KeyRing, cipher_of

ENCRYPTED = b"binary/encrypted"
KEY_ID, WORKFLOW_ID = "encryption-key-id", "encryption-workflow-id"
IN_CLEAR = "backstop-in-clear"
"""A key in the metadata of a decoded payload that was not encrypted; its value is the date of the switch."""
run_began: ContextVar[datetime | None] = ContextVar("when the run that is activated began", default=None)
"""None: the payload is an answer that a client reads."""
arrived_in_clear: ContextVar[bool] = ContextVar("whether an activity's arguments arrived in clear", default=False)
_NONCE_BYTES = 12
_VERSION = b"backstop 1"


class Encrypted(PayloadCodec, WithSerializationContext):
    """Compresses, then encrypts; reads what is encrypted for this workflow, and marks what is not encrypted.

    Without a context, for example when a person reads a history, it reads payloads of any workflow and marks nothing.
    """

    def __init__(self, ring: KeyRing, workflow: str | None = None, *, of_activity: bool = False) -> None:
        self.ring = ring
        self._workflow = workflow
        self._of_activity = of_activity

    def with_context(self, context: SerializationContext) -> Self:
        if not isinstance(context, WorkflowSerializationContext | ActivitySerializationContext):
            return self
        workflow = context.workflow_id or ""
        return type(self)(self.ring, workflow, of_activity=isinstance(context, ActivitySerializationContext))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._hide(smaller(p)) for p in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._read(p) for p in payloads]

    def _hide(self, payload: Payload) -> Payload:
        key_id, key = self.ring.encrypting_key()
        workflow = self._workflow or ""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = cipher_of(key, workflow).encrypt(nonce, payload.SerializeToString(), _bind(key_id, workflow))
        metadata = {"encoding": ENCRYPTED, KEY_ID: key_id.encode(), WORKFLOW_ID: workflow.encode(errors="replace")}
        return Payload(metadata=metadata, data=nonce + sealed)

    def _read(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCRYPTED:
            return self._mark(unfold(payload))
        plain = self._open(payload)
        return payload if plain is None else unfold(plain)

    def _open(self, payload: Payload) -> Payload | None:
        """Decrypt a payload; None: it belongs to another workflow or an unknown key, or was changed."""
        try:
            key_id, named = payload.metadata[KEY_ID].decode(), payload.metadata[WORKFLOW_ID].decode()
        except UnicodeDecodeError:
            return None
        # By the context where one is known: what a payload says of itself is not asked.
        workflow = named if self._workflow is None else self._workflow
        key = self.ring.key_of(key_id)
        if key is None:
            return None
        from cryptography.exceptions import InvalidTag

        nonce, sealed = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
        try:
            return Payload.FromString(cipher_of(key, workflow).decrypt(nonce, sealed, _bind(key_id, workflow)))
        except (InvalidTag, ValueError, DecodeError):
            return None

    def _mark(self, payload: Payload) -> Payload:
        if self._workflow is None:
            return payload
        if self._of_activity:
            arrived_in_clear.set(True)
            return payload
        marked = Payload(metadata=payload.metadata, data=payload.data)
        marked.metadata[IN_CLEAR] = self.ring.since.isoformat().encode()
        return marked


def _bind(key_id: str, workflow: str) -> bytes:
    """Return the bytes that are authenticated beside the payload. No key's id has a newline."""
    return b"\n".join((_VERSION, key_id.encode(), workflow.encode(errors="surrogatepass")))
