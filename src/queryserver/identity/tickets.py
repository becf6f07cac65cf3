"""Download tickets: permissions to read one URL for a minute without a header (Contract platform 3.14).

A browser sends no `Authorization` header when it follows a link, so a page requests a ticket for the URL first.
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from queryserver import errors
from queryserver.identity.callers import CallerRepository, TokenKey, api_token_user, require_valid
from queryserver.identity.keys import Sealer
from queryserver.identity.model import User

LIFETIME_S = 60
_MAX_CHARACTERS = 1024
_Hex = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]*$")]


class _Content(BaseModel):
    """What a ticket contains, encrypted: its URL, its end, and the token by whose call it was issued."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    purpose: Literal["download ticket"] = "download ticket"
    """Other secrets are sealed with the same key; none of them can be read as a ticket."""
    url: _Hex
    """SHA-256 of the URL."""
    expires_at: float
    user_id: int
    family: str
    jti: str
    epoch: int | None
    api_token: _Hex
    """Digest of the API token; empty if the call had none."""


@dataclass(slots=True, eq=False)
class DownloadTickets:
    """Issues tickets and identifies the callers that send them. Any server of the deployment accepts them."""

    sealer: Sealer
    records: CallerRepository
    clock: Callable[[], float] = time.time

    def issue(self, user: User, url: str) -> str:
        """Return a ticket with which `user` can read `url` for `LIFETIME_S` seconds."""
        family, jti = user.token_ids
        content = _Content(
            url=_digest(url),
            expires_at=self.clock() + LIFETIME_S,
            user_id=user.id,
            family=family,
            jti=jti,
            epoch=user.token_epoch,
            api_token=user.api_token.digest.hex() if user.api_token else "",
        )
        return urlsafe_b64encode(self.sealer.seal(content.model_dump_json().encode())).decode().rstrip("=")

    async def user(self, ticket: str, url: str) -> User:
        """Return the user of a ticket with present rights, limited as the call that requested it.

        Raises InvalidToken if the ticket is malformed, expired or for another URL, or if the token of that call was
        revoked; UserNotFound, UserInactive, DatabaseUnavailable.
        """
        content = self._opened(ticket)
        if content.expires_at <= self.clock() or content.url != _digest(url):
            raise errors.InvalidToken
        if content.api_token:
            return api_token_user(await self.records.api_token(bytes.fromhex(content.api_token)))
        owner = await self.records.owner(TokenKey(content.user_id, content.family, content.jti))
        user = require_valid(owner, content.epoch).user
        return replace(user, token_ids=(content.family, content.jti), token_epoch=content.epoch)

    def _opened(self, ticket: str) -> _Content:
        try:
            if len(ticket) > _MAX_CHARACTERS:
                raise errors.InvalidToken
            sealed = urlsafe_b64decode(ticket.encode("ascii") + b"=" * (-len(ticket) % 4))
            return _Content.model_validate_json(self.sealer.unseal(sealed))
        except (ValueError, ValidationError):
            raise errors.InvalidToken from None


def _digest(url: str) -> str:
    return sha256(url.encode()).hexdigest()
