"""What can go wrong before the server serves."""


class EmbeddedPostgresError(Exception):
    """The private PostgreSQL does not start; the text says why and what a person can do."""


class StateDirectoryInUse(EmbeddedPostgresError):
    """Another server runs on the same state directory."""
