"""The rights that groups have, as text (Contract platform 4.3)."""

import re

from queryserver.domain.errors.base import invalid_right
from queryserver.domain.user import ADMIN, ANY_CONNECTOR, DOWNLOAD, IMPERSONATE, IMPORTER, METADATA

STORES = (
    "filebrowser.s3_access",
    "filebrowser.abfs_access",
    "filebrowser.ofs_access",
    "filebrowser.file_access",
)
"""Each opens one store; hdfs needs none."""

_NAMED = frozenset({ADMIN, ANY_CONNECTOR, DOWNLOAD, IMPERSONATE, IMPORTER, METADATA, *STORES})
# Written in one way only, or a grant would not be found again. Ids are bigints.
_ONE_CONNECTOR = re.compile(r"connector:[1-9][0-9]{0,18}", re.ASCII)


def read_right(text: str) -> str:
    """The right that `text` names. Raises invalid_right."""
    if text in _NAMED or _ONE_CONNECTOR.fullmatch(text):
        return text
    raise invalid_right(f"There is no right {text[:100]}.")
