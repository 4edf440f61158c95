"""The cost of a payload on its way out and back, with and without encryption, by size: `python benchmarks/codec.py`.

CPU time of one process, the median of some turns. The whole of a rollout: benchmarks/rollout.py, with and without
`--encrypted`.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from temporalio.converter import PayloadCodec

from client.compression import Zlib
from client.converter import data_converter
from client.encryption import Encrypted
from client.payload_keys import KeyRing, PayloadKeys, new_key, write_keys

SIZES = (300, 3_000, 30_000, 300_000, 2_000_000)
TURNS = 7


async def cost(codec: PayloadCodec, size: int) -> tuple[float, int]:
    """Return microseconds out and back, and the bytes that travel."""
    rows = [{"team": f"team-{n}", "gpus": n * 8, "reason": "as it stands"} for n in range(max(1, size // 60))]
    (payload,) = data_converter.payload_converter.to_payloads([rows])
    count = max(3, 3_000_000 // size // 10)
    found, sent = [], 0
    out = [payload]
    for _ in range(TURNS):
        began = time.process_time()
        for _ in range(count):
            out = await codec.encode([payload])
            await codec.decode(out)
        found.append((time.process_time() - began) / count * 1e6)
        sent = out[0].ByteSize()
    return statistics.median(found), sent


async def main() -> None:
    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "payload.json"
        write_keys(path, PayloadKeys(since=now, keys=(new_key(now, now),)))
        ring = KeyRing(path)
        print(f"{'bytes':>10} {'plain us':>10} {'encrypted us':>13} {'more us':>9} {'sent':>9} {'sent encrypted':>15}")
        for size in SIZES:
            plain, sent = await cost(Zlib(), size)
            hidden, more = await cost(Encrypted(ring, "rollout/a"), size)
            print(f"{size:>10,} {plain:>10.1f} {hidden:>13.1f} {hidden - plain:>9.1f} {sent:>9,} {more:>15,}")


if __name__ == "__main__":
    asyncio.run(main())
