"""Names and texts in statements."""

import pytest

from queryserver.engines.catalog_queries import escaped_literal, identifier, literal, qualified

pytestmark = pytest.mark.item(62)


def test_an_identifier_cannot_end_its_own_quotes() -> None:
    assert identifier('x"; DROP TABLE t; --') == '"x""; DROP TABLE t; --"'
    assert identifier("a`b", mark="`") == "`a``b`"
    assert qualified("a.b", "c`d", mark="`") == "`a.b`.`c``d`"


def test_a_literal_cannot_end_its_own_quotes() -> None:
    assert literal("o'brien") == "'o''brien'"
    assert literal("back\\'slash") == "'back\\''slash'"
    assert escaped_literal("back\\'slash") == "'back\\\\\\'slash'"
