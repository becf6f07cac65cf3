"""SQLAlchemy's dialect suite, run as README.dialects.rst recommends for third-party dialects."""

from sqlalchemy.testing.suite import *  # noqa: F403
