"""Failures of connectors, configuration and search (Contract platform 1.4)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queryserver.domain.errors.access import PermissionDenied
from queryserver.domain.errors.base import configured
from queryserver.domain.errors.calls import InvalidRequest, NotSupported
from queryserver.domain.errors.objects import Conflict, NotFound
from queryserver.domain.errors.parts import ServiceUnavailable

_SHOWN = 100  # characters of a name that a client gave

Problems = Mapping[str, Sequence[str]]
"""Parameter or setting to texts."""


class ConnectorNotFound(NotFound):
    """No such instance for this caller."""

    code = "connector_not_found"

    def __init__(self, connector_id: object) -> None:
        super().__init__(f"Connector {str(connector_id)[:_SHOWN]} does not exist.")


class ConnectorTypeNotFound(NotFound):
    """The catalogue has no such pair of dialect and interface."""

    code = "connector_type_not_found"

    def __init__(self, dialect: str, interface: str, known: Iterable[str]) -> None:
        """`known`: dialects of the catalogue, which are named where this one is not among them."""
        dialects = list(dict.fromkeys(known))
        named = f"There is no connector type {dialect[:_SHOWN]} with interface {interface[:_SHOWN]}."
        super().__init__(named if dialect in dialects else f"{named}{configured(dialects, word='Known dialects')}")


class ConnectorRefused(InvalidRequest):
    """Settings of a connector are not valid; `errors` says which and why."""

    code = "validation_failed"

    def __init__(self, errors: Problems, message: str = "The connector is not valid.") -> None:
        super().__init__(message)
        self.errors = {name: list(texts) for name, texts in errors.items()}

    @property
    def beside(self) -> Mapping[str, Any]:
        """See QueryServerError."""
        return {"errors": self.errors}


class UnknownSetting(ConnectorRefused):
    """The type has no such setting."""

    code = "unknown_setting"


class DriverNotAllowed(ConnectorRefused):
    """The driver of a url is not in `connector_policy.allowed_drivers`."""

    code = "driver_not_allowed"


class OptionNotAllowed(ConnectorRefused):
    """An option of a url, or an engine option, is not allowed."""

    code = "option_not_allowed"


class HostNotAllowed(ConnectorRefused):
    """An address that connectors must not reach."""

    code = "host_not_allowed"


class SecretRequired(ConnectorRefused):
    """A masked secret came where none is stored, or with another address than the one it was given for."""

    code = "secret_required"


class ImmutableField(ConnectorRefused):
    """Dialect and interface stay what they were at creation."""

    code = "immutable_field"


class TooManyIds(InvalidRequest):
    """More than 1000 ids in one call."""

    code = "too_many_ids"


class ConnectorNameTaken(Conflict):
    """Another instance has this name, by any case."""

    code = "name_taken"

    def __init__(self, name: str) -> None:
        super().__init__(f"A connector named {name[:_SHOWN]} exists already.")


class VersionConflict(Conflict):
    """The object was changed since it was read; `version` is the stored number."""

    code = "version_conflict"

    def __init__(self, version: int) -> None:
        super().__init__("It was changed meanwhile: read it again.")
        self.version = version

    @property
    def beside(self) -> Mapping[str, Any]:
        """See QueryServerError."""
        return {"version": self.version}


class ConnectorInUse(Conflict):
    """Statements of the connector wait or run."""

    code = "connector_in_use"

    def __init__(self, running: int) -> None:
        super().__init__(f"Statements of this connector that wait or run: {running}.")
        self.running = running

    @property
    def beside(self) -> Mapping[str, Any]:
        """See QueryServerError."""
        return {"running": self.running}


class InterfaceNotSupported(NotSupported):
    """Connectors of this type can be stored, and neither run nor tested."""

    code = "interface_not_supported"


class DriverNotInstalled(NotSupported):
    """The package of a driver is missing."""

    code = "driver_not_installed"


class CatalogNotConfigured(NotSupported):
    """`metadata.catalog.api_url` is empty."""

    code = "catalog_not_configured"


class CatalogNotSupported(NotSupported):
    """No adapter for this catalogue."""

    code = "catalog_not_supported"


class SourceNotConfigured(NotSupported):
    """A source of the search that this server does not have; a search goes on without it."""

    def __init__(self, message: str = "Not configured.") -> None:
        super().__init__(message)


class CatalogDenied(PermissionDenied):
    """The external catalogue refuses our login."""

    code = "catalog_denied"


class EngineJwtRequired(PermissionDenied):
    """The engine wants the caller's external token, and the call came with an own one (Contract platform 3.9)."""

    code = "engine_jwt_required"


class CatalogUnavailable(ServiceUnavailable):
    """All sources of a search failed."""

    code = "catalog_unavailable"


class CatalogOutOfReach(CatalogUnavailable):
    """Nobody answers there: to ask for another source would take as long again."""


class KeyServerUnavailable(ServiceUnavailable):
    """No key set could ever be had: a good token cannot be told from a bad one."""

    code = "key_server_unavailable"
