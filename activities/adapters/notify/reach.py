"""Where a contact, or a recipe's URL, may lead: not inside the network, unless the operator lists it.

It is written by a team and used by the worker, which stands inside. So the addresses that its host's name has
are looked at when the connection is made, and the connection goes to the very address that was looked at: a name that
answers otherwise the second time (DNS rebinding) gains nothing. Through a proxy the name is the proxy's to resolve and
to judge; only an address that is written out is judged here.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.errors import BadInput, Refusal, Unavailable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_TRIED = 4
"""Addresses of one name that are tried, in the order that the resolver gives."""
_CARRIERS = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))
"""An IPv4 address stands in their last four bytes: NAT64 (RFC 6052), and the IPv4-compatible ones (RFC 4291)."""


@dataclass(frozen=True)
class Reach:
    """Which addresses may be connected to: public ones, and these networks."""

    networks: tuple[Network, ...] = ()
    everywhere: bool = False
    """Of what the operator has configured, such as the mail server."""
    listed_in: str = "BACKSTOP_CONTACT_NETWORKS"
    """Where the operator lists those networks."""

    def admits(self, address: str) -> bool:
        plain = _plain(address)
        listed = any(plain.version == network.version and plain in network for network in self.networks)
        return self.everywhere or listed or (plain.is_global and not plain.is_multicast)

    def addresses(self, host: str, port: int, seconds: float) -> tuple[str, ...]:
        """What the name stands for now, as far as it may be connected to; at least one.

        Errors: Unavailable where no answer comes within `seconds`, Refusal where every address is barred.
        """
        all_addresses = _resolved(host.strip("[]"), port, seconds)
        admitted = tuple(dict.fromkeys(address for address in all_addresses if self.admits(address)))
        if not admitted:
            raise self._barred()
        return admitted[:_TRIED]

    def check_written(self, host: str) -> None:
        """Errors: Refusal for an address written out in place of a name, and barred. A name is not resolved."""
        try:
            written = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            written = []
        inside = host.lower().rstrip(".").endswith("localhost")
        if (inside and not self.everywhere) or not all(self.admits(str(each[4][0])) for each in written):
            raise self._barred()

    def _barred(self) -> Refusal:
        return Refusal(
            f"its host is inside the network: the operator lists what may be reached there ({self.listed_in})"
        )


PUBLIC, EVERYWHERE = Reach(), Reach(everywhere=True)


def networks_of(text: str) -> tuple[Network, ...]:
    """10.1.0.0/16,fd00::/8 as networks. Errors: BadInput naming what is none."""
    networks: list[Network] = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(each))
        except ValueError as error:
            raise BadInput(f"BACKSTOP_CONTACT_NETWORKS holds {each!r}, which is no network: {error}") from None
    return tuple(networks)


def _plain(address: str) -> _Address:
    """The address that is reached in the end: an IPv4 one may be wrapped in an IPv6 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if int(ip) > 1 and any(ip in carrier for carrier in _CARRIERS):
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


def _resolved(host: str, port: int, seconds: float) -> list[str]:
    """By the machine's resolver, which takes no limit of time: so it is asked beside, and waited for."""
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
        raise Unavailable("no connection or login")
    return [str(each[4][0]) for each in answer]
