"""`backstop serve`, and the front of `backstop up`: a process that answers HTTP until a signal stops it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from dataclasses import replace
from functools import partial

from temporalio.client import Client

from client import telemetry
from client.compression import Zlib
from client.connection import TemporalTarget, connect, find_target
from client.encryption import Encrypted
from client.front_key_files import FrontKey
from client.payload_keys import configured_ring
from client.stop_signal import until_told
from models.errors import BackstopError, BadInput
from web.callers import Callers, OwnTokens, Tokens
from web.console.login import BrowserClient
from web.front import Codec, Front
from web.ledger_rights import LedgerRights
from web.oidc import Provider, how_to_log_in
from web.server import listening
from web.settings import beside_up, load_front_settings
from web.slack.endpoint import REPLIES, SlackTerms
from web.temporal_connection import Doors

_READY = "front: ready"
"""The program that starts the front waits for this line."""


async def _main(arguments: argparse.Namespace) -> None:
    settings = load_front_settings(arguments.listen, arguments.tls_cert, arguments.tls_key)
    if arguments.console and settings.listen is None:
        settings = replace(settings, listen=beside_up())
    plugins, runtime, flush = telemetry.of_worker("backstop-front")
    target = find_target()

    async def open_client() -> tuple[Client, TemporalTarget]:
        return await connect(target, plugins, runtime, identity="front (backstop)"), target

    provider = None if settings.oidc is None else Provider(settings.oidc)
    doors = Doors(open_client, FrontKey())
    rights = LedgerRights(doors)
    tokens: tuple[Tokens, ...] = (OwnTokens(rights), *([] if provider is None else [provider]))
    ring = configured_ring()
    codec = Codec(Zlib() if ring is None else Encrypted(ring), settings.codec_origins)
    about = partial(how_to_log_in, provider)

    browsers = None
    if settings.oidc is not None and settings.oidc.client:
        browsers = BrowserClient(settings.oidc, settings.oidc_secret)
    slack = None
    if settings.slack is not None:
        slack = SlackTerms(settings.slack, settings.slack_replies or REPLIES, settings.public_url)
    front = Front(doors, Callers(tokens), about=about, rights=rights, codec=codec, browsers=browsers, slack=slack)
    async with listening(front, settings, {"address": target.address, "namespace": target.namespace}) as where:
        for place in where:
            print(f"front      {place}")
        print(_READY, flush=True)
        await until_told(child=arguments.child)
        print("front: stopping", flush=True)
    flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="backstop serve", add_help=False)
    parser.add_argument("--listen", default="")
    parser.add_argument("--tls-cert", default="")
    parser.add_argument("--tls-key", default="")
    parser.add_argument("--console", action="store_true")
    parser.add_argument("--child", action="store_true")
    return parser.parse_args()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_main(_arguments()))
    except BackstopError as error:
        print(f"backstop: {error.message}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BadInput) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
