"""URL schemes of store paths."""

from collections.abc import Mapping
from types import MappingProxyType

STORE_SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "hdfs": "hdfs",
        "s3a": "s3a",
        "s3": "s3a",
        "s3n": "s3a",
        "abfs": "abfs",
        "abfss": "abfs",
        "adls": "abfs",
        "adl": "abfs",
        "ofs": "ofs",
        "file": "file",
    }
)
"""The canonical scheme of each accepted scheme (lower case), for all stores, whether configured or not."""
