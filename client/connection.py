"""Finds Temporal: the environment or a profile (temporalio.envconfig), else the one that `backstop up` runs."""

from __future__ import annotations

import contextvars
import json
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, Plugin
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

from client.converter import converter_with
from client.payload_keys import configured_ring
from client.places import embedded_file
from models.errors import BadInput, Unavailable

NAMESPACE = "backstop"
current_actor: contextvars.ContextVar[str] = contextvars.ContextVar("backstop_actor", default="")
"""Who gives the command: the name becomes the `identity` that Temporal's history shows beside each command."""


@dataclass(frozen=True)
class TemporalTarget:
    """The address of a Temporal server. `embedded`: `backstop up` started it."""

    options: dict[str, Any]
    embedded: bool

    @property
    def address(self) -> str:
        return str(self.options["target_host"])

    @property
    def namespace(self) -> str:
        return str(self.options["namespace"])


def find_target() -> TemporalTarget:
    """Return the configured Temporal, else the embedded one. Errors: BadInput for a broken profile."""
    try:
        config = ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, OSError) as error:
        raise BadInput(f"the Temporal profile cannot be read: {error}") from error
    options = dict(config)
    configured = bool(options.get("target_host"))
    options.setdefault("namespace", NAMESPACE)
    if configured:
        return TemporalTarget(options=options, embedded=False)
    try:
        document = json.loads(embedded_file().read_text())
        options["target_host"] = str(document["address"])
    except (OSError, ValueError, KeyError):
        options["target_host"] = "127.0.0.1:7233"
    return TemporalTarget(options=options, embedded=True)


async def connect(
    target: TemporalTarget | None = None, plugins: tuple[Plugin, ...] = (), runtime: Any = None, identity: str = ""
) -> Client:
    """Connect to the configured Temporal. Errors: Unavailable, in one sentence; BadInput for broken payload keys."""
    where = target or find_target()
    more: dict[str, Any] = {"runtime": runtime} if runtime is not None else {}
    if identity:
        more["identity"] = identity
    converter = converter_with(configured_ring())
    try:
        return await Client.connect(**where.options, data_converter=converter, plugins=list(plugins), **more)
    except (RuntimeError, RPCError, OSError) as error:
        remedy = "start it with `backstop up`" if where.embedded else "check TEMPORAL_ADDRESS or the profile"
        raise Unavailable(f"Temporal does not answer at {where.address}: {remedy}") from error
