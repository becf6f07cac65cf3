"""SQLAlchemy's dialect suite, as its README.dialects.rst says that third-party dialects run it."""

from sqlalchemy.testing.suite import *  # noqa: F403
