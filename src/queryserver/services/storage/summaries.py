"""Sums of trees (Contract storage 5.6)."""

from queryserver.domain.errors.base import NotSupported
from queryserver.domain.files import ContentSummary
from queryserver.interfaces.storage import SummarizedStorage
from queryserver.services.storage.stores import Place


async def content_summary(place: Place) -> ContentSummary:
    """What a tree or a file holds.

    Raises NotSupported, PathNotFound, PermissionDenied, too_many_entries, StorageError.
    """
    if not isinstance(place.storage, SummarizedStorage):
        raise NotSupported(f"The store {place.path.scheme} does not sum up directories.")
    return await place.storage.content_summary(place.path.path)
