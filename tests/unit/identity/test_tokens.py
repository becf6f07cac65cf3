"""The encoding of the tokens that we issue (Contract platform 3.3, security T12)."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from jose import jwt
from pydantic import SecretStr

from queryserver.errors.base import InvalidToken
from queryserver.identity.callers import JwtCodec, TokenClaims, TokenType
from queryserver.identity.keys import Keyring, SecretKey

NOW = 1_700_000_000
KEY = SecretKey.derive(SecretStr("a secret of more than thirty-two characters"))
OTHER = SecretKey.derive(SecretStr("another secret of more than 32 characters"))
CLAIMS = TokenClaims(TokenType.ACCESS, 7, 2, "f" * 32, "a" * 32, NOW, NOW + 60)


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def codec(clock: Clock) -> JwtCodec:
    return JwtCodec(Keyring(KEY), clock=clock)


def content(**changes: Any) -> dict[str, Any]:
    """Return valid claims with `changes` applied; a value of None omits a claim."""
    good = {
        "token_type": "access",
        "exp": NOW + 60,
        "iat": NOW,
        "jti": "a" * 32,
        "user_id": 7,
        "epoch": 2,
        "family": "f" * 32,
    }
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def signed(claims: Mapping[str, Any], *, key: bytes = KEY.signing, algorithm: str = "HS256", kid: str = KEY.id) -> str:
    return jwt.encode(dict(claims), key, algorithm=algorithm, headers={"kid": kid})


def raw(header: Mapping[str, Any], claims: Mapping[str, Any], signature: str = "") -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims)]
    return ".".join([*parts, signature])


def test_signed_claims_round_trip(codec: JwtCodec) -> None:
    token = codec.sign(CLAIMS)
    assert codec.read(token) == CLAIMS
    assert jwt.get_unverified_header(token) == {"alg": "HS256", "typ": "JWT", "kid": KEY.id}
    assert jwt.get_unverified_claims(token) == content()


def test_token_expires_on_time_even_if_it_was_read_before(codec: JwtCodec, clock: Clock) -> None:
    token = codec.sign(CLAIMS)
    codec.read(token)
    clock.now = NOW + 60
    with pytest.raises(InvalidToken):
        codec.read(token)
    assert codec.read(token, expired_too=True) == CLAIMS


@pytest.mark.platform(28)
@pytest.mark.security("T12")
@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
def test_other_algorithms_are_rejected(codec: JwtCodec, algorithm: str) -> None:
    with pytest.raises(InvalidToken):
        codec.read(signed(content(), algorithm=algorithm))


@pytest.mark.platform(28)
@pytest.mark.security("T12")
@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 5, ["HS256"]])
def test_unsigned_token_is_rejected(codec: JwtCodec, algorithm: Any) -> None:
    with pytest.raises(InvalidToken):
        codec.read(raw({"alg": algorithm, "typ": "JWT", "kid": KEY.id}, content()))


@pytest.mark.security("T12")
def test_keys_embedded_in_a_token_are_ignored(codec: JwtCodec) -> None:
    own = {"kty": "oct", "k": base64.urlsafe_b64encode(OTHER.signing).decode(), "alg": "HS256"}
    headers = {"kid": KEY.id, "jwk": own, "jku": "https://example.com/keys", "x5u": "https://example.com/cert"}
    with pytest.raises(InvalidToken):
        codec.read(jwt.encode(content(), OTHER.signing, algorithm="HS256", headers=headers))


@pytest.mark.parametrize("kid", [OTHER.id, "", "../../etc/passwd"])
def test_unknown_key_is_rejected(codec: JwtCodec, kid: str) -> None:
    with pytest.raises(InvalidToken):
        codec.read(signed(content(), key=OTHER.signing, kid=kid))


def test_former_key_verifies_and_no_longer_signs(clock: Clock) -> None:
    codec = JwtCodec(Keyring(OTHER, (KEY,)), clock=clock)
    assert codec.read(signed(content())) == CLAIMS
    assert jwt.get_unverified_header(codec.sign(CLAIMS))["kid"] == OTHER.id


@pytest.mark.security("T12")
@pytest.mark.parametrize("name", ["exp", "iat", "jti", "epoch", "family", "token_type"])
@pytest.mark.parametrize("value", [None, "", "x", True, 1.5, -1, [], {}])
def test_every_claim_is_required_and_typed(codec: JwtCodec, name: str, value: Any) -> None:
    with pytest.raises(InvalidToken, match="invalid or expired"):
        codec.read(signed(content(**{name: value})))


def test_token_without_a_user_has_its_own_message(codec: JwtCodec) -> None:
    with pytest.raises(InvalidToken, match="Token contained no recognizable user identification"):
        codec.read(signed(content(user_id=None)))


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "é", "x" * 100_000, "." * 10_000, "eyJ9.e30.", "\0"])
def test_what_is_no_token_is_refused(codec: JwtCodec, token: str) -> None:
    with pytest.raises(InvalidToken):
        codec.read(token)


def test_altered_token_is_rejected_after_the_valid_one_was_read(codec: JwtCodec) -> None:
    token = codec.sign(CLAIMS)
    codec.read(token)
    head, body, signature = token.split(".")
    with pytest.raises(InvalidToken):
        codec.read(f"{head}.{body}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}")
    with pytest.raises(InvalidToken):
        codec.read(raw({"alg": "HS256", "typ": "JWT", "kid": KEY.id}, content(user_id=1), signature))


def test_cache_of_valid_tokens_is_bounded(codec: JwtCodec) -> None:
    for number in range(5000):
        codec.read(signed(content(user_id=number)))
    assert codec._good.cache_info().maxsize == 4096
