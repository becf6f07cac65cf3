"""Expected errors that only their code distinguishes."""

import pytest

from queryserver.errors.base import QueryServerError


def raises_code(code: str, *, match: str | None = None) -> pytest.RaisesExc[QueryServerError]:
    """Like `pytest.raises`, but for an error of this service that has the given code."""
    return pytest.raises(QueryServerError, match=match, check=lambda error: error.code == code)
