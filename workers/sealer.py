"""Seals the archive every so often, and when the worker stops. Source: docs/seals.md; docs/adr/0059.

Any worker that sees a seal due makes it: the ledger takes each number once. Then each worker brings its own keepers up
to date. An error costs a line in the log and one in `doctor`, and never a rollout.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from activities.adapters.ledger.facade import Ledger
from activities.adapters.seals.keepers import Keeper, lock_keeper
from activities.metrics import seal_age
from client.private_files import write_beside
from models.audit_chain import ChainHead
from models.errors import BackstopError, Refusal, Unavailable
from models.seals import SealedSeal, next_seal, sealed_heads, verifier_key
from models.texts import some_of

logger = logging.getLogger("backstop.seals")
_LOOKS = 4
"""Checks in the time between two seals."""
_LAST_SECONDS = 20.0
"""Seconds that a stopping worker's last seal may take."""


def seal_key(path: Path) -> Ed25519PrivateKey:
    """Return the key of the file, or make one; its public half lies beside it. Errors: Refusal."""
    try:
        if not path.exists():
            _make(path)
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Refusal(f"{path} does not have a private key for seals: {type(error).__name__}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise Refusal(
            f"{path} must have an Ed25519 key for seals: restore the file, or move it away, so that Backstop "
            "makes a new key"
        )
    return key


def _make(path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with write_beside(path, text) as part:
        try:
            os.link(part, path)  # fails if another one was first
        except FileExistsError:
            return
    path.with_suffix(".pub").write_text(verifier_key(key.public_key()) + "\n")


class Sealer:
    """Seals the archive for one worker."""

    def __init__(self, ledger: Ledger, keepers: Sequence[Keeper], key_file: Path, every: timedelta) -> None:
        self._ledger = ledger
        self._keepers = keepers
        self._key_file = key_file
        self._every = every

    def look(self, *, stops: bool = False) -> str:
        """Make a seal if one is due, and bring keepers up to date; return what is wrong; empty: nothing."""
        try:
            trouble = self._look(stops)
        except BackstopError as error:
            trouble = error.message
        except Exception as error:
            logger.exception("seals")
            trouble = f"sealing failed: {type(error).__name__}"
        self._tell(trouble)
        return trouble

    def _look(self, stops: bool) -> str:
        book, now = self._ledger.seals, self._ledger.now()
        have = book.all()
        wrong = self._difference(have)
        if wrong:
            return wrong
        seals = [one.seal for one in have]
        before, heads = sealed_heads(seals), book.heads()
        moved = [head for head in heads if before.get(head.cluster) != head and head.length]
        faults = {head.cluster: fault for head in moved if (fault := book.fault_of(before.get(head.cluster), head))}
        there = {head.cluster for head in heads}
        faults |= {cluster: "has no rows any more, but a seal covers it" for cluster in before if cluster not in there}
        if not seals or now - seals[-1].at >= self._every or (stops and moved):
            good = [head for head in moved if head.cluster not in faults]
            have = self._seal(have, good, now)
        self._bring_up_to_date(have)
        differ = some_of([f"{cluster}: {text}" for cluster, text in sorted(faults.items())], 3, by="; ")
        return f"chains differ from what was sealed: {differ}" if faults else ""

    def _seal(self, have: list[SealedSeal], heads: Sequence[ChainHead], now: datetime) -> list[SealedSeal]:
        seal = next_seal(have, heads, now, seal_key(self._key_file))
        return [*have, seal] if self._ledger.seals.add(seal) else self._ledger.seals.all()

    def _difference(self, have: Sequence[SealedSeal]) -> str:
        """Return why nothing can be sealed: a keeper has other seals than the ledger."""
        for keeper in self._keepers:
            try:
                kept = keeper.kept_seals()
            except BackstopError:
                continue  # reported when it is brought up to date
            if list(have[: len(kept)]) != list(kept):
                return (
                    f"the ledger's seals differ from those of {keeper.name}: the ledger was restored from a backup, or "
                    "somebody has rewritten it (docs/seals.md)"
                )
        return ""

    def _bring_up_to_date(self, have: Sequence[SealedSeal]) -> None:
        """Give each keeper its missing seals. Errors: Unavailable naming each keeper that fails."""
        failed = []
        for keeper in self._keepers:
            try:
                with lock_keeper(keeper.place):  # workers of one machine may share it
                    missing = have[len(keeper.kept_seals()) :]
                    if missing:
                        keeper.append(missing)
            except BackstopError as error:
                failed.append(error.message)
        if failed:
            raise Unavailable("; ".join(failed))

    def _tell(self, trouble: str) -> None:
        if trouble:
            logger.warning("%s", trouble)
        try:
            self._ledger.seals.note(self._every, trouble)
            sealing_now = self._ledger.seals.sealing_state()
        except BackstopError as error:
            logger.warning("seals: %s", error.message)
            return
        if sealing_now is not None:
            seal_age.set((self._ledger.now() - (sealing_now.at or sealing_now.since)).total_seconds())


@asynccontextmanager
async def sealing(ledger: Ledger, keepers: Sequence[Keeper], key_file: Path, every: timedelta) -> AsyncIterator[None]:
    """Within, seal the archive every so often, and once more at the end. Without keepers do nothing."""
    if not keepers:
        yield
        return
    sealer = Sealer(ledger, keepers, key_file, every)

    async def keep_on() -> None:
        while True:
            await asyncio.to_thread(sealer.look)
            await asyncio.sleep(min(60.0, every.total_seconds() / _LOOKS))

    task = asyncio.create_task(keep_on())
    try:
        yield
    finally:
        task.cancel()
        try:
            await asyncio.wait_for(asyncio.to_thread(sealer.look, stops=True), _LAST_SECONDS)
        except TimeoutError:
            logger.warning("the last seal took longer than %g s and is left to the next worker", _LAST_SECONDS)
