"""Names inside of filters and of distinguished names stay names (Rule T16)."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ldap3.operation.search import MATCH_EQUAL, MATCH_PRESENT, parse_filter
from ldap3.utils.dn import parse_dn

from queryserver.identity.ldap.login import both, filter_value, name_value

pytestmark = [pytest.mark.platform(48), pytest.mark.security("T16")]

_TEXT = st.text(
    st.one_of(st.sampled_from('*()\\\0,+"<>;=#/ &|!~'), st.characters(exclude_categories=["Cs"])), min_size=1
)


@given(_TEXT)
@example("*)(uid=*")
@example("*)(|(objectclass=*")
@example("\0")
@example("\\2a")
@example("a\\")
def test_a_filter_has_one_equality_and_its_value_is_the_text(text: str) -> None:
    parsed = parse_filter(both("objectclass=*", f"uid={filter_value(text)}"), None, False, False, None, False)
    [conjunction] = parsed.elements
    present, equal = conjunction.elements
    assert (present.assertion["attr"], equal.assertion["attr"]) == ("objectclass", "uid")
    assert (present.tag, equal.tag) == (MATCH_PRESENT, MATCH_EQUAL)
    assert _unescaped(equal.assertion["value"]) == text


@given(_TEXT)
@example("ana,ou=admins")
@example("ana+uid=admin")
@example(" #a ")
@example("\0")
@example(" ")
def test_a_name_has_one_part_of_one_value_and_that_is_the_text(text: str) -> None:
    parts = parse_dn(f"uid={name_value(text)},dc=example,dc=test")
    assert [(attribute, end) for attribute, _, end in parts] == [("uid", ","), ("dc", ","), ("dc", "")]
    assert _unescaped(parts[0][1]) == text


@pytest.mark.parametrize("given", ["objectclass=person", "(objectclass=person)"])
def test_filters_of_the_settings_may_lack_parentheses(given: str) -> None:
    assert both(given, "uid=ana") == "(&(objectclass=person)(uid=ana))"


def _unescaped(value: str | bytes) -> str:
    """What a server reads: pairs of digits are bytes."""
    raw = value if isinstance(value, bytes) else value.encode()
    return re.sub(rb"\\([0-9a-f]{2})", lambda pair: bytes([int(pair[1], 16)]), raw).decode()
