"""SQLAlchemy's dialect suite. It is imported as README.dialects.rst recommends for third-party dialects."""

from sqlalchemy.testing.suite import *  # noqa: F403
