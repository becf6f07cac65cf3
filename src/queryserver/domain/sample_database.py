"""The names of the users' database in the private PostgreSQL, and of the roles that use it."""

SAMPLE_DATABASE = "sample"

SAMPLE_OWNER = "sample_owner"
"""Owns the objects and has the rights. Sessions act as this role; it cannot log in."""

SAMPLE_ROLE = "sample_user"
"""The login of the connector itself: for checks, not for statements of users."""


def sample_login(user_id: int) -> str:
    """The role that one user's sessions log in as."""
    return f"{SAMPLE_ROLE}_{user_id:d}"
