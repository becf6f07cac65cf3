"""What can go wrong before the server serves."""


class EmbeddedPostgresError(Exception):
    """The private PostgreSQL does not start; the text says why and what a person can do."""


class EmbeddedPostgresNotInstalled(EmbeddedPostgresError):
    """The programs of PostgreSQL are an extra of the package, and it was installed without."""
