"""What the parent of several workers decides by itself."""

import pickle

import pytest

from queryserver.domain.errors import ConfigurationError, DatabaseUnavailable, QueryServerError, SchemaMismatch
from queryserver.supervision import _remade, pause_s


def test_pauses_grow_from_one_second_to_thirty():
    assert [pause_s(failures) for failures in (1, 2, 3, 4, 5, 6, 7, 5000)] == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize(
    "error",
    [ConfigurationError(["a: one.", "b: two."]), SchemaMismatch("Another schema."), DatabaseUnavailable()],
    ids=lambda error: error.code,
)
def test_why_a_worker_cannot_start_reaches_its_parent_unchanged(
    error: ConfigurationError | SchemaMismatch | DatabaseUnavailable,
):
    heard: QueryServerError = pickle.loads(pickle.dumps(_remade(error)))()  # noqa: S301 our own, as a pipe does it
    assert (type(heard), heard.message) == (type(error), error.message)
    assert vars(heard) == vars(error)
