"""Makes one exchange over HTTP, for all adapters: within a total time, to hosts that may be reached, without redirects.

The time is for the whole exchange: name, connection, request and answer. A client's own limit starts over with each
byte that trickles in. A redirect is an answer and not followed: a POST that ends on a login page would count as
delivered, and a token would be sent along.

A contact, or a recipe's URL, may not lead inside the network, unless the operator lists it: a team writes it, and the
worker, which is inside, uses it. So the addresses of its host's name are checked when the connection is made, and the
connection goes to the very address that was checked: a name that resolves differently the second time (DNS rebinding)
gains nothing. A proxy resolves and judges names itself; only an address that is written out is judged here.

The HTTP client logs URLs, and Slack's and many webhooks' hold a token: its log records end here during an exchange.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import queue
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from models.errors import BadInput, Refusal, Unavailable

_SECONDS = 20.0
"""The time limit of the whole exchange, in seconds."""
_ANSWER_BYTES = 4096
"""Bytes of an answer that are read; the rest is ignored."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_TRIED = 4
"""Addresses of one name that are tried, in the resolver's order."""
_CARRIERS = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))
"""Networks whose addresses end with an IPv4 address: NAT64 (RFC 6052), IPv4-compatible (RFC 4291)."""
_exchanging: ContextVar[bool] = ContextVar("whether we are in the HTTP client", default=False)


@dataclass(frozen=True)
class Reach:
    """The addresses that may be connected to: public ones, and these networks."""

    networks: tuple[Network, ...] = ()
    everywhere: bool = False
    """All addresses, for servers that the operator has configured, such as the mail server."""
    listed_in: str = "BACKSTOP_CONTACT_NETWORKS"
    """The setting in which the operator lists `networks`."""

    def admits(self, address: str) -> bool:
        plain = _plain(address)
        listed = any(plain.version == network.version and plain in network for network in self.networks)
        return self.everywhere or listed or (plain.is_global and not plain.is_multicast)

    def addresses(self, host: str, port: int, seconds: float) -> tuple[str, ...]:
        """Resolve the name to the addresses that may be connected to; at least one.

        Errors: Unavailable if no answer comes within `seconds`, Refusal if every address is barred.
        """
        all_addresses = _resolve(host.strip("[]"), port, seconds)
        admitted = tuple(dict.fromkeys(address for address in all_addresses if self.admits(address)))
        if not admitted:
            raise self._refusal()
        return admitted[:_TRIED]

    def check_written(self, host: str) -> None:
        """Check an address that is written out in place of a name; names are not resolved. Errors: Refusal."""
        try:
            written = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            written = []
        inside = host.lower().rstrip(".").endswith("localhost")
        if (inside and not self.everywhere) or not all(self.admits(str(each[4][0])) for each in written):
            raise self._refusal()

    def _refusal(self) -> Refusal:
        return Refusal(f"its host is in an internal network: allow that network in {self.listed_in}")


PUBLIC, EVERYWHERE = Reach(), Reach(everywhere=True)


def networks_of(text: str) -> tuple[Network, ...]:
    """Parse 10.1.0.0/16,fd00::/8 as networks. Errors: BadInput naming what is none."""
    networks: list[Network] = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(each))
        except ValueError as error:
            raise BadInput(f"BACKSTOP_CONTACT_NETWORKS has {each!r}, which is not a network: {error}") from None
    return tuple(networks)


def _plain(address: str) -> _Address:
    """Return the address that is reached in the end: an IPv4 one may be wrapped in an IPv6 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if int(ip) > 1 and any(ip in carrier for carrier in _CARRIERS):
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


def _resolve(host: str, port: int, seconds: float) -> list[str]:
    """Resolve in a thread, and wait for it: the machine's resolver takes no limit of time."""
    answers: queue.SimpleQueue[Sequence[Any] | None] = queue.SimpleQueue()

    def look() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            answers.put(None)

    threading.Thread(target=look, name="resolver", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise Unavailable("its host's name was not resolved in time") from None
    if not answer:
        raise Unavailable("its host's name could not be resolved")
    return [str(each[4][0]) for each in answer]


@dataclass(frozen=True)
class Asked:
    """A request. `content`: JSON, or with `form` a form; None: there is none. `most`: bytes of the answer to read."""

    method: str
    url: httpx.URL
    content: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    login: tuple[str, str] = field(default=("", ""), repr=False)
    verify: bool = True
    seconds: float = field(default_factory=lambda: _SECONDS)
    most: int = _ANSWER_BYTES
    form: bool = False


@dataclass(frozen=True)
class Answered:
    """The receiver's status, headers by name in lower case, and the beginning of its body."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    most: int
    """Bytes of the body to read at most; a longer body was cut."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body[: self.most].decode(errors="replace")

    def document(self, where: str) -> Any:
        """The body, as JSON. Errors: Unavailable."""
        if len(self.body) > self.most:
            raise Unavailable(f"{where} answered more than {self.most:,} bytes")
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{where} did not answer with JSON: {type(error).__name__} {error}") from None


def header_text(key: str) -> str:
    """Return the key as a header's value, %-encoded where it is not plain ASCII."""
    return quote(key, safe="!#$&'()*+,/:;=?@[]~")


def exchange(asked: Asked, reach: Reach) -> Answered:
    """Return the answer, whatever its status. Errors: Unavailable, with the reason only; Refusal for a barred host."""
    try:
        return fetch(asked, reach)
    except (Unavailable, Refusal):
        raise
    except TimeoutError:
        reason = f"no answer within {asked.seconds:g} seconds"
    except httpx.TransportError:
        reason = "no connection or login"
    except Exception:
        reason = "not accepted"
    # Raised outside the handlers: the foreign error and its text, secrets and all, end here.
    raise Unavailable(reason)


def fetch(asked: Asked, reach: Reach) -> Answered:
    """Do as `exchange`, but raise the client's own errors, whose texts may hold parts of the request."""
    ends = time.monotonic() + asked.seconds
    target = asked.url
    proxy = _proxy_of(target)
    if proxy:
        reach.check_written(target.host)
        addresses: Sequence[str] = ()
    else:
        port = target.port or (443 if target.scheme == "https" else 80)
        addresses = reach.addresses(target.host, port, asked.seconds)
    token = _exchanging.set(True)
    try:
        return asyncio.run(_exchange_until(asked, addresses, proxy, ends, own=reach.everywhere))
    finally:
        _exchanging.reset(token)


async def _exchange_until(
    asked: Asked, addresses: Sequence[str], proxy: str | None, ends: float, *, own: bool
) -> Answered:
    target = asked.url
    async with asyncio.timeout(max(0.0, ends - time.monotonic())):
        auth = httpx.BasicAuth(*asked.login) if asked.login[0] else None
        # The environment's certificates count, its proxies are read already, and netrc is not used.
        safe = target.scheme == "https" or proxy is not None
        context = httpx.create_ssl_context(verify=asked.verify) if safe else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if safe and own:  # the operator's own service may have a certificate of the machine's own authorities
            context.load_default_certs()
        client = httpx.AsyncClient(auth=auth, verify=context, timeout=asked.seconds, trust_env=False, proxy=proxy)
        sent = {"User-Agent": "Backstop", "Accept-Encoding": "identity", **asked.headers}
        content: dict[str, Any] = {"data" if asked.form else "json": asked.content}
        sent["Host"] = target.netloc.decode()
        name = {"sni_hostname": target.host}  # by which its certificate is checked
        async with client:
            for last, url in _places(target, addresses):
                try:
                    async with client.stream(asked.method, url, **content, headers=sent, extensions=name) as answer:
                        body = await _beginning(answer, asked.most + 1)
                        return Answered(answer.status_code, body, dict(answer.headers), asked.most)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    if last:
                        raise
    raise AssertionError("there is at least one place to connect to")


def _places(target: httpx.URL, addresses: Sequence[str]) -> list[tuple[bool, httpx.URL]]:
    """List the checked addresses to connect to, one after the other, each with whether it is the last."""
    places = [target.copy_with(host=address) for address in addresses] or [target]
    return [(number == len(places), place) for number, place in enumerate(places, start=1)]


async def _beginning(answer: httpx.Response, most: int) -> bytes:
    body = bytearray()
    async for piece in answer.aiter_raw():
        body += piece
        if len(body) >= most:
            break
    return bytes(body[:most])


def _proxy_of(target: httpx.URL) -> str | None:
    """Return the worker's own proxy, if it has one: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, and NO_PROXY against them."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(target.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_of_others(_: logging.LogRecord) -> bool:
    return not _exchanging.get()


for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy", "httpcore.socks"):
    logging.getLogger(_name).addFilter(_is_of_others)
