"""The codec that compresses large payloads.

A cluster of 5,000 quotas has a state of 2.3 MB, and Temporal refuses a payload above 2 MiB. Compressed it is
about a twelfth of that (docs/adr/0011). Small payloads stay as they are, so that the Temporal UI shows them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

ENCODING = b"binary/zlib"
"""The mark of the Go SDK's zlib codec, so that a codec server built on that SDK can decode our payloads."""
COMPRESS_FROM = 32 * 1024
"""Bytes from which a payload is compressed."""
LARGEST = 64 * 1024 * 1024
"""Bytes to which one payload may decompress: a small payload from a stranger must not fill the memory."""
_LEVEL, _HARDER = 1, 6
_LARGE = 1024 * 1024
"""Bytes above which a payload is compressed again, at a higher level: Temporal accepts at most 2 MiB."""


class Zlib(PayloadCodec):
    """Compresses large payloads; reads both kinds."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [smaller(p) for p in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [unfold(p) for p in payloads]


def smaller(payload: Payload) -> Payload:
    if payload.ByteSize() < COMPRESS_FROM:
        return payload
    plain = payload.SerializeToString()
    data = zlib.compress(plain, _LEVEL)
    if len(data) > _LARGE:
        data = zlib.compress(plain, _HARDER)
    return Payload(metadata={"encoding": ENCODING}, data=data) if len(data) < payload.ByteSize() else payload


def unfold(payload: Payload) -> Payload:
    if payload.metadata.get("encoding") != ENCODING:
        return payload
    unfolding = zlib.decompressobj()
    try:
        data = unfolding.decompress(payload.data, LARGEST)
        return Payload.FromString(data) if unfolding.eof else payload
    except (zlib.error, DecodeError):
        # Left as it is, the converter refuses it; an error here would fail the workflow task that carries it, for ever.
        return payload
