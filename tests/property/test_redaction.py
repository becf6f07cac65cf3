"""Redaction patterns that are skipped on lines without their keywords, compared with all patterns applied to every
line.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.platform.logs import _NAMED, _OTHER_SECRETS, Redactor, _masked_value

_NAMES = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "credentials", "signature", "sig"),
    *("api_key", "access-key", "accountkey", "secret_key_id", "private_key", "\u017fecret", "to\u212aen"),
)
_LINES = (
    *(f"a {name}{value}" for name in _NAMES for value in ("=planted1", ": 'planted1'", ': \\"planted1\\"')),
    *("bearer planted1", "Basic planted1", "eyJplanted1.x", f"upload/abcd{'e' * 39}", "x://user:planted1@host"),
    *(f"?{name}=planted1,2" for name in ("credential", "x-amz-credential", "awsaccesskeyid", "se", "skoid")),
)
_PIECES = st.sampled_from(["", " ", "/", "&", "'", "\u017f", "\u212a", "ey", "=", "key", "://", *_LINES])


def _by_all_patterns(line: str) -> str:
    for _, pattern, masked in _OTHER_SECRETS:
        line = pattern.sub(masked, line)
    return _NAMED.sub(_masked_value, line)


@pytest.mark.parametrize("line", _LINES)
def test_each_secret_is_masked(line: str):
    assert Redactor()(line) == _by_all_patterns(line) != line
    assert Redactor()(line.upper()) == _by_all_patterns(line.upper())


@given(st.lists(_PIECES, max_size=6).map("".join))
def test_skipping_patterns_gives_the_same_result_around_secrets(line: str):
    assert Redactor()(line) == _by_all_patterns(line)
    assert Redactor()(line.swapcase()) == _by_all_patterns(line.swapcase())
