"""Identifies the caller: by the kernel at the socket, by a token elsewhere. Without either they are anonymous."""

from __future__ import annotations

from typing import Protocol

from starlette.requests import Request

from models.access.principals import Principal, Proof
from models.access.tokens import TOKEN_PREFIX, token_hash
from web.failures import unauthenticated_problem
from web.peer import PEER, Peer

THIS_MACHINE = "this machine"
_BEARER = "bearer "
_MOST_TOKEN = 16_000
"""The most characters of a token: a provider may put many groups into it."""


class Tokens(Protocol):
    async def principal(self, token: str) -> Principal | None:
        """Return the token's owner; None: another verifier's token. Errors: Refusal, which never quotes it."""


class TokenBook(Protocol):
    """A store of tokens' hashes."""

    async def principal_by_token(self, token_hash: str) -> Principal | None:
        """Return the token's owner; None: there is none. Errors: Refusal: expired or revoked; Unavailable."""


class OwnTokens:
    """Tokens that an admin made, for people and services without a browser; a book knows them by their hash."""

    def __init__(self, book: TokenBook) -> None:
        self._book = book

    async def principal(self, token: str) -> Principal | None:
        return await self._book.principal_by_token(token_hash(token)) if token.startswith(TOKEN_PREFIX) else None


def at_the_socket(peer: Peer) -> Principal:
    name = f"user:{peer.user}"
    return Principal(name=name, human=name, proof=Proof.PEER, how=THIS_MACHINE)


class Callers:
    def __init__(self, tokens: tuple[Tokens, ...] = ()) -> None:
        self._tokens = tokens

    async def principal_of(self, request: Request) -> Principal:
        """Return the caller. Errors: Problem 401; Refusal for a token that is not valid."""
        peer = getattr(request.state, PEER, None)
        if isinstance(peer, Peer):
            return at_the_socket(peer)
        header = request.headers.get("authorization", "")
        if not header:
            raise unauthenticated_problem(
                "this front does not know you: run `backstop login`, or give a token in BACKSTOP_TOKEN"
            )
        token = header[len(_BEARER) :].strip()
        if not header.lower().startswith(_BEARER) or not token or len(token) > _MOST_TOKEN:
            raise unauthenticated_problem("the Authorization header must be `Bearer TOKEN`")
        for one in self._tokens:
            principal = await one.principal(token)
            if principal is not None:
                return principal
        raise unauthenticated_problem(
            "this front does not know the token: run `backstop login`, or ask an admin for a token"
        )
