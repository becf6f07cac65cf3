"""New containers (Contract storage 10.1, mkdir)."""

from collections.abc import Awaitable, Callable

from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.errors.files import InvalidName, PathExists
from queryserver.domain.storage_names import names_of
from queryserver.storages.adls.errors import AzureFailure
from queryserver.storages.adls.places import AzurePlace, is_container_name
from queryserver.storages.adls.transfers import Find


async def make_container(name: str, find: Find, create: Callable[[str], Awaitable[None]], *, is_allowed: bool) -> None:
    """Raises PathExists (the root too), PermissionDenied, InvalidName, AzureFailure."""
    if not names_of(name):
        raise PathExists("The root exists.")
    if is_container_name(name) and await _exists(name, find):
        raise PathExists(f"abfs://{name} exists.")
    if not is_allowed:
        raise PermissionDenied("This server makes no containers.")
    if not is_container_name(name):
        raise InvalidName("A container has 3 to 63 lower-case letters, digits and single hyphens.")
    await create(name)


async def _exists(name: str, find: Find) -> bool:
    try:
        await find(AzurePlace((name,)))
    except AzureFailure as failure:
        if failure.is_missing:
            return False
        raise
    return True
