"""stat and content_summary, each in both forms (Contract storage 5.4, 5.6)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.api.v1.storage.places import decoded_place, given_place
from queryserver.api.v1.storage.shapes import EntryShapes
from queryserver.domain.files import ContentSummary
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import query_parameters
from queryserver.schemas.requests.storage_reading import PathParameters, ReadParameters
from queryserver.services.storage.stores import Place
from queryserver.services.storage.summaries import content_summary

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)

_FAILURES = failures(400, 403, 404, 502)
_SUMMARY_FAILURES = failures(400, 403, 404, 413, 501, 502)


@router.get(
    "/stat={path:raw}",
    response_model=wire.StatResponse,
    responses=_FAILURES,
    openapi_extra={"parameters": query_parameters(ReadParameters)},
    summary="Attributes of an entry",
)
async def stat(call: StorageCall, path: str) -> Response:
    """Attributes of a file or directory; of a link, its own. Contract storage 5.4."""
    return await _stat(call, decoded_place(call, path))


@router.get(
    "/stat",
    response_model=wire.StatResponse,
    responses=_FAILURES,
    openapi_extra={"parameters": query_parameters(PathParameters)},
    summary="Attributes of an entry, by parameter",
)
async def stat_of(call: StorageCall) -> Response:
    """Attributes of a file or directory; the path is a parameter. Contract storage 5.4."""
    return await _stat(call, given_place(call))


@router.get(
    "/content_summary={path:raw}",
    response_model=wire.ContentSummaryResponse,
    responses=_SUMMARY_FAILURES,
    openapi_extra={"parameters": query_parameters(ReadParameters)},
    summary="What a tree holds",
)
async def summary(call: StorageCall, path: str) -> Response:
    """Counts and bytes of a tree. Spec §4, Contract storage 5.6."""
    return await _summary(decoded_place(call, path))


@router.get(
    "/content_summary",
    response_model=wire.ContentSummaryResponse,
    responses=_SUMMARY_FAILURES,
    openapi_extra={"parameters": query_parameters(PathParameters)},
    summary="What a tree holds, by parameter",
)
async def summary_of(call: StorageCall) -> Response:
    """Counts and bytes of a tree; the path is a parameter. Contract storage 5.6."""
    return await _summary(given_place(call))


async def _stat(call: StorageCall, place: Place) -> Response:
    status = await place.storage.stat(place.path.path)
    flat = EntryShapes.of(call.services.settings, place.path.scheme).flat_fields(status)
    return answer(wire.StatResponse.model_validate({"status": 0, **flat}))


async def _summary(place: Place) -> Response:
    counts = _counts(await content_summary(place))
    body = {**counts, "status": 0, "message": "", "path": str(place.path), "summary": counts}
    return answer(wire.ContentSummaryResponse.model_validate(body))


def _counts(summary: ContentSummary) -> dict[str, object]:
    """The keys of the wire, after those of the store that have no place of their own."""
    return {
        "typeQuota": {},
        **(summary.further or {}),
        "directoryCount": summary.directory_count,
        "fileCount": summary.file_count,
        "length": summary.length_bytes,
        "quota": summary.quota,
        "spaceConsumed": summary.space_consumed_bytes,
        "spaceQuota": summary.space_quota_bytes,
        "replication": summary.replication,
    }
