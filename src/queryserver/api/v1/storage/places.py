"""Where a GET call looks: the path of either form (Contract storage 2.2)."""

from queryserver.api.v1.storage.calls import StorageCall
from queryserver.domain.errors.base import MissingParameter
from queryserver.domain.storage_paths import decoded_path, repaired
from queryserver.schemas.requests.storage_reading import PathParameters
from queryserver.services.storage.stores import Place


def decoded_place(call: StorageCall, raw: str, *, or_root: bool = False) -> Place:
    """The place behind `=`. `or_root`: an empty path is the root of the default store, else it is missing.

    Raises MissingParameter, InvalidPath, UnknownScheme, StorageNotConfigured, UnknownAuthority, storage_access_denied.
    """
    return _place(call, decoded_path(raw), or_root=or_root)


def given_place(call: StorageCall, *, or_root: bool = False) -> Place:
    """The place of the parameter `path`; else as `decoded_place`."""
    return _place(call, repaired(call.read(PathParameters).path or ""), or_root=or_root)


def _place(call: StorageCall, text: str, *, or_root: bool) -> Place:
    stores = call.services.storage.stores
    if not text and not or_root:
        raise MissingParameter("path is required.")
    return stores.place(call.caller, stores.path_or_root(text))
