"""A lack of rights, when it is about metadata."""

from collections.abc import Generator
from contextlib import contextmanager

from queryserver.domain.errors.statements import EngineForbidden, StatementDenied


@contextmanager
def metadata_errors() -> Generator[None]:
    """Around a look at metadata: what the engine denies to the user is told as EngineForbidden."""
    try:
        yield
    except StatementDenied as error:
        raise EngineForbidden(error.message) from error
