"""Small rules of metadata: order of names, storage paths."""

import pytest

from queryserver.platform.text import natural_key
from queryserver.search.model import storage_path


@pytest.mark.item(60)
def test_numbers_in_names_count_as_numbers_and_case_does_not():
    names = ["t10", "T2", "t1", "a", "10", "2", "t", "B", "é", "", "t1a2"]
    assert sorted(names, key=natural_key) == ["", "2", "10", "a", "B", "t", "t1", "t1a2", "T2", "t10", "é"]


@pytest.mark.parametrize(("location", "path"),
    [("hdfs://nn:8020/warehouse/x", "/warehouse/x"), ("hdfs:/warehouse/x", "/warehouse/x"),
    ("/warehouse/x", "/warehouse/x"), ("hdfs://nn", "/"), ("s3a://bucket/x=1/y", "s3a://bucket/x=1/y"),
    ("abfs://box@store/x", "abfs://box@store/x"), ("ofs://om/volume/bucket", "ofs://om/volume/bucket"),
    ("file:/tmp/x", ""), ("jdbc:mysql://host/db", ""), ("//host/x", ""), ("", "")])  # fmt: skip
def test_a_location_becomes_the_path_of_the_storage_part(location: str, path: str):
    assert storage_path(location) == path
