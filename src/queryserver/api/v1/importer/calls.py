"""What a route of the importer gets: who calls, and the fields of the call (Contract importer 2)."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from fastapi import Depends, Request
from starlette.types import Receive, Scope, Send

from queryserver.api.dependencies import Body, CallRoute, authenticated, query_fields, read_body, services_of
from queryserver.api.errors import IMPORTER_STYLE
from queryserver.api.unknown_fields import reads
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.files import ImporterDenied
from queryserver.domain.user import IMPORTER, User
from queryserver.schemas.requests.importing import parse_import
from queryserver.schemas.snippets import Fields
from queryserver.services.everything import Services

_MAX_BODY_BYTES = 1024 * 1024

Model = TypeVar("Model", bound=Fields)


@dataclass(frozen=True, slots=True)
class _ImporterCall:
    """One authenticated call of somebody who may import."""

    request: Request
    services: Services
    user: User
    body: Body
    """The fields as they came: of the query string, or of a body, where JSON values stay what they are."""

    async def read(self, model: type[Model]) -> Model:
        """The fields as the call wants them. Raises InvalidRequest."""
        reads(self.request.scope, model)
        depth = self.services.settings.limits.max_json_depth
        parsed = partial(parse_import, model, self.body.fields, max_json_depth=depth)
        if not self.body.is_large:
            return parsed()
        return await self.services.threads.bodies.run(self.user.id, lambda _: parsed())


async def _declared() -> None:
    """ImporterRoute makes the call; FastAPI only learns that it is neither a parameter nor a body."""


ImporterCall: TypeAlias = Annotated[_ImporterCall, Depends(_declared)]
"""One authenticated call; for endpoints of an ImporterRoute."""


def require_importer(user: User) -> None:
    """Raises ImporterDenied."""
    if not user.may(IMPORTER):
        raise ImporterDenied("You lack the right to import files.")


class ImporterRoute(CallRoute):
    """A route whose endpoint takes an ImporterCall. Its failures, also a wrong method, have the importer's body."""

    fault_code: ClassVar[str] = QueryServerError.code
    """`code` of what goes wrong inside."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Route."""
        scope[IMPORTER_STYLE] = self.fault_code
        await super().handle(scope, receive, send)

    async def call(self, request: Request) -> _ImporterCall:
        """Who calls is asked first, then whether they may import; only then the body is read."""
        services = services_of(request)
        user = await authenticated(request)
        if not services.settings.importer.is_enabled:
            raise ImporterDenied("The importer is switched off.")
        require_importer(user)
        return _ImporterCall(request, services, user, await self.body(request, user.id))

    async def body(self, request: Request, user_id: int) -> Body:
        """The fields of the call; of a repeated one the last counts. Raises as `read_body`."""
        if request.method == "GET":
            return query_fields(request)
        return await read_body(request, max_bytes=_MAX_BODY_BYTES, user_id=user_id)


class StreamedRoute(ImporterRoute):
    """A route that reads its body itself."""

    async def body(self, request: Request, user_id: int) -> Body:
        """None yet."""
        del request, user_id
        return Body(dict[str, Any]())
