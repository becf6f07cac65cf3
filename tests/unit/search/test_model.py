"""The order of metadata names, and the paths of storage entries."""

import pytest

from queryserver.platform.text import natural_key
from queryserver.search.model import storage_path


@pytest.mark.item(60)
def test_natural_order_compares_numbers_and_ignores_case():
    names = ["t10", "T2", "t1", "a", "10", "2", "t", "B", "é", "", "t1a2"]
    assert sorted(names, key=natural_key) == ["", "2", "10", "a", "B", "t", "t1", "t1a2", "T2", "t10", "é"]


@pytest.mark.parametrize(("location", "path"),
    [("hdfs://nn:8020/warehouse/x", "/warehouse/x"), ("hdfs:/warehouse/x", "/warehouse/x"),
    ("/warehouse/x", "/warehouse/x"), ("hdfs://nn", "/"), ("s3a://bucket/x=1/y", "s3a://bucket/x=1/y"),
    ("abfs://box@store/x", "abfs://box@store/x"), ("ofs://om/volume/bucket", "ofs://om/volume/bucket"),
    ("file:/tmp/x", ""), ("jdbc:mysql://host/db", ""), ("//host/x", ""), ("", "")])  # fmt: skip
def test_location_becomes_a_storage_path(location: str, path: str):
    assert storage_path(location) == path
