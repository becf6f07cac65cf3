"""Addresses of tables and databases in storages, and the paths under which the storage part shows them."""

from urllib.parse import urlsplit

_KEPT_SCHEMES = frozenset({"s3a", "s3", "s3n", "gs", "abfs", "abfss", "ofs", "o3fs"})


def storage_path(location: str) -> str:
    """`/warehouse/x` for `hdfs://nn/warehouse/x`; other storages keep scheme and bucket; `""` for anything else."""
    scheme, separator, rest = location.partition("://")
    if separator and scheme.lower() in _KEPT_SCHEMES:
        return f"{scheme.lower()}://{rest}"
    if scheme.lower() in {"hdfs", "webhdfs", "viewfs"} and separator:
        return urlsplit(location).path or "/"
    # HDFS paths also come as `hdfs:/x`, and without a scheme.
    path = location.removeprefix("hdfs:")
    return path if path.startswith("/") and not path.startswith("//") else ""
