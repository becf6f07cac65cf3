"""filesystems: the stores of the caller (Contract storage 5.1)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import query_parameters
from queryserver.schemas.requests.storage_reading import ReadParameters
from queryserver.services.storage.filesystems import Cluster, KnownFileSystem

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)


@router.get(
    "/filesystems",
    response_model=wire.FilesystemList,
    responses=failures(403),
    openapi_extra={"parameters": query_parameters(ReadParameters)},
    summary="File systems of the caller",
)
async def filesystems(call: StorageCall) -> Response:
    """The stores that are configured and permitted. Spec §4, Contract storage 5.1."""
    known = await call.services.storage.file_systems.all(call.caller)
    return answer(wire.FilesystemList(list(map(_file_system, known))))


def _file_system(known: KnownFileSystem) -> wire.Filesystem:
    return wire.Filesystem(
        file_system=known.scheme.value,
        name=known.scheme.value,
        user_home_directory=str(known.home),
        config=_config(known.cluster),
    )


def _config(cluster: Cluster | None) -> wire.HdfsConfig | wire.NoConfig:
    if cluster is None:
        return wire.NoConfig()
    return wire.HdfsConfig(
        is_trash_enabled=cluster.is_trash_enabled,
        is_hdfs_superuser=cluster.is_superuser,
        groups=list(cluster.groups),
        users=list(cluster.users),
        superuser=cluster.facts.superuser if cluster.facts else None,
        supergroup=cluster.facts.supergroup if cluster.facts else None,
    )
