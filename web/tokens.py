"""Tokens that an admin made, for people and services without a browser: known by their hash."""

from __future__ import annotations

import hashlib
from typing import Protocol

from models.access.principals import Principal

PREFIX = "bst_"


class TokenBook(Protocol):
    """A store of tokens' hashes."""

    async def principal_by_token(self, token_hash: str) -> Principal | None:
        """Return the token's owner; None: there is none. Errors: Refusal: expired or revoked; Unavailable."""


class OwnTokens:
    """web.callers.Tokens, from a book."""

    def __init__(self, book: TokenBook) -> None:
        self._book = book

    async def principal(self, token: str) -> Principal | None:
        if not token.startswith(PREFIX):
            return None
        return await self._book.principal_by_token(hashlib.sha256(token.encode()).hexdigest())
