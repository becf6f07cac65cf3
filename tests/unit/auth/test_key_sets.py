"""Public keys of a JWKS document (Contract platform 3.9 rule 2)."""

import json
from typing import Any

import pytest
from tests.fakes.issuer import jwk, rsa_key

from queryserver.identity.external_keys import KeySet


def document(*entries: Any) -> bytes:
    return json.dumps({"keys": entries}).encode()


GOOD = jwk(rsa_key("one"), "one")


@pytest.mark.parametrize("more", [{}, {"use": "sig"}, {"alg": "RS256"}, {"use": "sig", "alg": "RS256", "x5c": ["x"]}])
def test_keys_for_signatures_with_rs256_are_usable(more: dict[str, Any]) -> None:
    assert [key.kid for key in KeySet.parse(document(GOOD | more)).find("one")] == ["one"]


@pytest.mark.security("T12")
@pytest.mark.parametrize(
    "bad",
    [
        GOOD | {"use": "enc"},
        GOOD | {"alg": "RS512"},
        GOOD | {"alg": "HS256"},
        GOOD | {"alg": None},
        GOOD | {"kty": "EC"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "one"},
        GOOD | {"n": "AQAB"},
        GOOD | {"n": None},
        GOOD | {"n": "***"},
        GOOD | {"n": "____" * 1000},
        GOOD | {"e": "Ag"},
        GOOD | {"e": "AQ"},
        GOOD | {"e": 65537},
        GOOD | {"kid": 5},
        jwk(rsa_key("short", 1024), "one"),
        "one",
        None,
        [],
    ],
)
def test_others_are_passed_over(bad: Any) -> None:
    keys = KeySet.parse(document(bad, jwk(rsa_key("two"), "two")))
    assert [key.kid for key in keys.keys] == ["two"]


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", "null", '{"keys": {}}', '{"keys": null}', "[" * 5000, "\xff"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 the library's own, and ours
        KeySet.parse(text.encode("latin-1"))


def test_without_an_id_only_a_set_of_one_key_answers() -> None:
    alone = KeySet.parse(document(jwk(rsa_key("one"), None)))
    assert alone.find(None) == alone.keys
    assert alone.find("") == alone.find("one") == ()
    assert KeySet.parse(document(GOOD, jwk(rsa_key("two"), "two"))).find(None) == ()


def test_keys_of_one_id_are_all_tried() -> None:
    keys = KeySet.parse(document(GOOD, jwk(rsa_key("two"), "one"))).find("one")
    assert len(keys) == 2
    assert keys[0] != keys[1]
