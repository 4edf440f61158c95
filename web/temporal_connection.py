"""The front's own connection to Temporal, and a door for each request, at which its principal speaks."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio.client import Client

from activities.clock import Clock, utc_now
from client.backstop import Backstop
from client.connection import TemporalTarget
from client.front_signer import FrontSigner, SigningKey
from models.access.principals import Principal, Proof
from models.base import Model

_LATELY_SECONDS = 5.0
"""How long a worker that has answered counts as one that answers."""

FRONT = Principal(name="service:front", proof=Proof.SERVICE, how="the front itself")

SignedT = TypeVar("SignedT", bound=Model)
Connect = Callable[[], Awaitable[tuple[Client, TemporalTarget]]]


class Doors:
    """A connection that is made when it is first needed, and again after a failure: a front may start before its
    Temporal.

    `key`: returns the key that signs each message for its author; None: workers have to trust the front. `now`: the
    whole front's clock.
    """

    def __init__(
        self, connect: Connect, key: Callable[[], SigningKey | None] = lambda: None, now: Clock = utc_now
    ) -> None:
        self.now = now
        self._connect = connect
        self._key = key
        self._connected: tuple[Client, TemporalTarget] | None = None
        self._turn = asyncio.Lock()
        self._heard_at = float("-inf")

    async def door_of(
        self,
        principal: Principal,
        *,
        two_person: bool = False,
        roles: tuple[str, ...] = (),
        emergency: bool = False,
        second: str = "",
    ) -> Backstop:
        """Return a door for the principal. `two_person`: an access file wants a second person where the table does.

        `roles`: those that were used. `emergency`: they act alone. `second`: the signed ticket of the person they
        countersign. Errors: Unavailable.
        """
        async with self._turn:
            if self._connected is None:
                self._connected = await self._connect()
        client, target = self._connected
        # Until an access file says who may do what, its machine's user is one person with all roles.
        signer = self._signer(principal, two_person=two_person, roles=roles, emergency=emergency, second=second)
        door = Backstop(client, principal.name, target, signer, self.now)
        door.heard = _Heard(self)
        return door

    def sign(
        self, message: SignedT, command: str, workflow: str, principal: Principal, roles: tuple[str, ...]
    ) -> SignedT:
        """Return the message signed for this person, to be kept; unsigned where this front has no key."""
        signer = self._signer(principal, two_person=True, roles=roles)
        return message if signer is None else signer(message, command, workflow)

    def shared_secret(self, purpose: bytes) -> bytes | None:
        """A secret that only fronts with this front's key know; None: it has no key."""
        key = self._key()
        if key is None:
            return None
        return hmac.new(str(key.key.as_dict(private=True)["d"]).encode(), purpose, hashlib.sha256).digest()

    def _signer(self, principal: Principal, **more: Any) -> FrontSigner | None:
        key = self._key()
        return None if key is None else FrontSigner(key, principal, now=self.now, **more)

    def hear(self) -> None:
        """Note that a worker has answered something."""
        self._heard_at = time.monotonic()

    @property
    def heard_lately(self) -> bool:
        return time.monotonic() - self._heard_at < _LATELY_SECONDS


class _Heard(asyncio.Event):
    """An event that, when set, tells the front as well."""

    def __init__(self, doors: Doors) -> None:
        super().__init__()
        self._doors = doors

    def set(self) -> None:
        super().set()
        self._doors.hear()
