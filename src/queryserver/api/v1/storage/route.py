"""The routes of storage calls: what failures look like (Contract storage 3), and the count of calls."""

from fastapi import Request, Response
from fastapi.routing import APIRoute

from queryserver import errors
from queryserver.api.authentication import services_of
from queryserver.api.errors import respond
from queryserver.api.routes import PathGroup, RouteHandler
from queryserver.api.schemas.requests.storage import NAME_FIELDS, PATH_FIELDS, RequestFields
from queryserver.files.access import Caller
from queryserver.platform.metrics import OTHER

PREFIX = "/api/v1/storage"


class StorageRoute(APIRoute):
    """The `status` of failures is -1. Each call is counted with its scheme, operation and outcome."""

    def get_route_handler(self) -> RouteHandler:
        handle = super().get_route_handler()
        operation = self.path.removeprefix(f"{PREFIX}/").partition("=")[0]

        async def handle_and_count(request: Request) -> Response:
            outcome = "internal_error"
            try:
                response = await handle(request)
                outcome = "ok"
            except errors.QueryServerError as error:
                shown = _shown(request, error)
                outcome, response = shown.code, respond(request, shown, plain=True)
            finally:
                operations = services_of(request).metrics.storage_operations
                operations.labels(_scheme(request), operation, outcome).inc()
            return response

        return handle_and_count


def storage_group(tag: str = "storage", *, prefix: str = PREFIX) -> PathGroup:
    """A router of storage calls."""
    return PathGroup(tag, prefix=prefix, route_class=StorageRoute)


def _shown(request: Request, error: errors.QueryServerError) -> errors.QueryServerError:
    """A path that is no text is an invalid path, wherever it stands (Contract storage 2.2), and so is a name."""
    if isinstance(error, errors.UnreadableParameter):
        if error.name in PATH_FIELDS:
            return errors.InvalidPath(error.message)
        return errors.InvalidName(error.message) if error.name in NAME_FIELDS else error
    user = request.scope.get("user")
    return error if user is None else services_of(request).storage.stores.with_configured(error, Caller.of(user))


def _scheme(request: Request) -> str:
    """The scheme of the first path of the call, for the metrics."""
    fields: RequestFields | None = getattr(request.state, "storage_fields", None)
    sources = () if fields is None else (fields.query, fields.body)
    texts = [values[name][-1] for values in sources for name in PATH_FIELDS if values.get(name)]
    text = next(iter([*request.path_params.values(), *texts]), None)
    if fields is None or not isinstance(text, str):
        return OTHER
    try:
        return services_of(request).storage.stores.path(text).scheme
    except errors.QueryServerError:
        return OTHER
