"""Own tokens: JWT with HS256. The only module that knows the token library.

Rule T12: the algorithm is ours, never the token's; what a token says about keys (`jku`, `x5u`, `jwk`) is not looked at.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from jose import jwt
from jose.exceptions import JOSEError

from queryserver.auth.compact import algorithm_of
from queryserver.auth.keys import Keyring
from queryserver.domain.errors.base import InvalidToken
from queryserver.domain.lru import LruCache
from queryserver.interfaces.auth import TokenClaims, TokenType

ALGORITHM = "HS256"

_MOST_CHARACTERS = 4096
# A token of ours has 400 characters: four thousand people at work cost 4 MB.
_REMEMBERED = 4096

_HEX32 = re.compile(r"[0-9a-f]{32}")

# The library is asked for the signature and the form. Which claims there must be, and whether the time is over, is
# decided here: its `require_exp` would switch its own clock on, and an expired token could not be revoked.
_OPTIONS = {
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
    "verify_aud": False,
}


class JwtCodec:
    """See `interfaces.auth.TokenCodec`."""

    def __init__(self, keyring: Keyring, *, clock: Callable[[], float] = time.time) -> None:
        self._keyring = keyring
        self._clock = clock
        # The same token comes with every call of a client: its signature is checked once, its time on each call.
        self._good = LruCache[str, TokenClaims](_REMEMBERED)

    def sign(self, claims: TokenClaims) -> str:
        """The token."""
        content = {
            "token_type": claims.token_type.value,
            "exp": claims.expires_at,
            "iat": claims.issued_at,
            "jti": claims.jti,
            "user_id": claims.user_id,
            "epoch": claims.epoch,
            "family": claims.family,
        }
        key = self._keyring.present
        return jwt.encode(content, key.signing, algorithm=ALGORITHM, headers={"kid": key.id})

    def read(self, token: str, *, expired_too: bool = False) -> TokenClaims:
        """The content of a good token. Raises InvalidToken for a bad form, key, signature or time."""
        claims = self._good.get(token)
        if claims is None:
            claims = self._verified(token)
            self._good.put(token, claims)
        if claims.expires_at <= self._clock() and not expired_too:
            raise InvalidToken
        return claims

    def recognises(self, token: str) -> bool:
        """Whether a token is of this kind, be it good or not: its algorithm is HS256."""
        return algorithm_of(token) == ALGORITHM

    def _verified(self, token: str) -> TokenClaims:
        if len(token) > _MOST_CHARACTERS or not token.isascii():
            raise InvalidToken
        try:
            header = jwt.get_unverified_header(token)
            key = self._keyring.find(str(header.get("kid")))
            if key is None or header.get("alg") != ALGORITHM:
                raise InvalidToken
            content = jwt.decode(token, key.signing, algorithms=[ALGORITHM], options=_OPTIONS)
        except (JOSEError, ValueError, TypeError, AttributeError, RecursionError):
            # The library answers some malformed headers with plain Python errors.
            raise InvalidToken from None
        return _claims(content)


def _claims(content: Mapping[str, Any]) -> TokenClaims:
    if "user_id" not in content:
        raise InvalidToken("Token contained no recognizable user identification")
    numbers = [content.get(name) for name in ("user_id", "epoch", "iat", "exp")]
    names = [content.get(name) for name in ("family", "jti")]
    kind = content.get("token_type")
    well_formed = (
        all(type(number) is int and 0 <= number < 2**63 for number in numbers)
        and all(isinstance(name, str) and _HEX32.fullmatch(name) for name in names)
        and kind in ("access", "refresh")
    )
    if not well_formed:
        raise InvalidToken
    return TokenClaims(
        token_type=TokenType(kind),
        user_id=content["user_id"],
        epoch=content["epoch"],
        family=content["family"],
        jti=content["jti"],
        issued_at=content["iat"],
        expires_at=content["exp"],
    )
