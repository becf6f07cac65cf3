"""A token issuer with real RSA keys, and a key server on the loopback interface. A test may change its responses."""

import base64
import json
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jose import jwt
from jose.jwk import construct
from tests.fakes.webhdfs import Answer, ReceivedRequest, Script, ScriptedNameNode, scripted_name_node

ISSUER = "https://issuer.example"
AUDIENCE = "queryserver"


@cache
def rsa_key(name: str, bits: int = 2048) -> RSAPrivateKey:
    """Return the RSA key with this name. It is generated once per process, because this takes a tenth of a second."""
    assert name
    return generate_private_key(public_exponent=65537, key_size=bits)


def public_pem(key: RSAPrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def jwk(key: RSAPrivateKey, kid: str | None, **more: Any) -> dict[str, Any]:
    """Return a JWKS entry for the key."""
    numbers = key.public_key().public_numbers()
    entry = {"kty": "RSA", "n": _number(numbers.n), "e": _number(numbers.e), **more}
    return entry if kid is None else {**entry, "kid": kid}


def claims(**changes: Any) -> dict[str, Any]:
    """Return valid claims to which `changes` are applied. A claim that is set to None is omitted."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ana", "iat": now, "exp": now + 600}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def raw(header: Mapping[str, Any], content: Mapping[str, Any], signature: str = "") -> str:
    """Return a token with an arbitrary header, content and signature."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, content)]
    return ".".join([*parts, signature])


@dataclass
class Issuer:
    """Signs tokens and serves its public keys as a JWKS document."""

    keys: dict[str, RSAPrivateKey] = field(default_factory=lambda: {"one": rsa_key("one")})
    served: list[dict[str, Any]] | None = None
    """Entries of the JWKS document. If it is None, the document contains all `keys`."""
    answer: Answer | None = None
    """A response that replaces the JWKS document if it is set."""
    script: Script | None = None
    """A function that computes every response if it is set."""
    servers: list[ScriptedNameNode] = field(default_factory=list)

    def token(self, kid: str | None = "one", *, key: RSAPrivateKey | None = None, **changes: Any) -> str:
        """Return a signed token, which is valid by default. `changes` replaces claims; its item `header` adds fields to
        the token's header.
        """
        header = dict(changes.pop("header", {})) | ({} if kid is None else {"kid": kid})
        signer = key or self.keys[kid or "one"]
        return jwt.encode(claims(**changes), _signing(signer), algorithm="RS256", headers=header)

    def document(self) -> dict[str, Any]:
        entries = [jwk(key, kid, alg="RS256", use="sig") for kid, key in self.keys.items()]
        return {"keys": entries if self.served is None else self.served}

    @property
    def fetches(self) -> int:
        """The number of requests for the keys."""
        return sum(len(server.asked) for server in self.servers)

    async def serve(self, request: ReceivedRequest) -> Answer:
        if self.script is not None:
            return await self.script(request)
        return self.answer or Answer(body=json.dumps(self.document()).encode())

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
        """Serve the JWKS document and yield its URL."""
        async with scripted_name_node(self.serve, tls) as server:
            self.servers.append(server)
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.port}/keys"


@cache
def _signing(key: RSAPrivateKey) -> Any:
    """Convert the key to the JWT library's format. The result is cached, because the conversion takes tens of
    milliseconds.
    """
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return construct(pem, algorithm="RS256")


def _number(value: int) -> str:
    return base64.urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8)).rstrip(b"=").decode()
