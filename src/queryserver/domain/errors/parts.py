"""What the service itself stands on."""

from queryserver.domain.errors.base import QueryServerError


class StorageError(QueryServerError):
    """A store failed."""

    code = "storage_error"


class ServiceUnavailable(QueryServerError):
    """Something that the service needs is out of reach for now."""

    code = "service_unavailable"


class DatabaseUnavailable(ServiceUnavailable):
    """The service's own database is out of reach."""

    code = "database_unavailable"

    def __init__(self) -> None:
        super().__init__("The service database cannot be reached.")


class Stopping(ServiceUnavailable):
    """This server is being stopped and begins no new work; another server, or a later call, does."""

    code = "stopping"

    def __init__(self) -> None:
        super().__init__("This server is stopping and starts no new work. Send the call again.")


class LoginBackendUnavailable(ServiceUnavailable):
    """No login back end accepted the caller, and one could not be asked."""

    code = "login_backend_unavailable"


class SchemaMismatch(QueryServerError):
    """The service database has another schema version than this program."""

    code = "schema_mismatch"


class ConfigurationError(QueryServerError):
    """The settings do not allow a start; `problems` are lines `<key>: <text>`."""

    code = "configuration_error"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
