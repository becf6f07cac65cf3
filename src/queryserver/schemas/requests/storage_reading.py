"""Fields of the storage calls that list and look (Contract storage 5)."""

from typing import Annotated, Literal

from queryserver.schemas.fields import Flag, Text, Whole
from queryserver.schemas.requests.given import StorageFields

MAX_PAGE_SIZE = 10_000

SortBy = Literal["type", "name", "atime", "mtime", "user", "group", "size"]


class ReadParameters(StorageFields):
    """What every GET call takes: as whom it acts."""

    doas: Text | None = None


class PathParameters(ReadParameters):
    """A call whose path stands in the query."""

    path: Text | None = None


class DirectoryParameters(ReadParameters):
    """Which page of a directory is wanted."""

    pagenum: Annotated[int, Whole(1)] = 1
    pagesize: Annotated[int, Whole(1, MAX_PAGE_SIZE)] = 30
    filter: Text = ""
    sortby: SortBy = "name"
    descending: Flag = False


class ListParameters(DirectoryParameters):
    """Fields of list."""

    path: Text | None = None


class ViewParameters(DirectoryParameters):
    """Fields of view= for a directory."""

    is_embeddable: Flag = False
