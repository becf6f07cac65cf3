"""Checks of expected errors that can be distinguished only by their code."""

import pytest

from queryserver.errors.base import QueryServerError


def raises_code(code: str, *, match: str | None = None) -> pytest.RaisesExc[QueryServerError]:
    """Expect a QueryServerError with the given code, as `pytest.raises` expects an exception class."""
    return pytest.raises(QueryServerError, match=match, check=lambda error: error.code == code)
