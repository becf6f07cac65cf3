"""MySQL's histograms as its manual shows them (8.0 reference manual, 10.9.6)."""

import json

import pytest

from queryserver.engines.mysql.catalog import read_histogram
from queryserver.engines.protocol import ColumnStatistics

pytestmark = pytest.mark.item(65)


def test_a_singleton_histogram_has_a_bucket_per_value() -> None:
    histogram = {
        "buckets": [[1, 0.25], [3, 0.5], [7, 0.75]],
        "data-type": "int",
        "null-values": 0.25,
        "histogram-type": "singleton",
    }
    assert read_histogram(json.dumps(histogram), 8) == ColumnStatistics(min="1", max="7", num_nulls=2, distinct_count=3)


def test_an_equi_height_histogram_has_bounds_and_counts() -> None:
    histogram = {
        "buckets": [
            ["base64:type254:QWE=", "base64:type254:Qmg=", 0.5, 10],
            ["base64:type254:Qmk=", "base64:type254:Wno=", 1.0, 12],
        ],
        "data-type": "string",
        "null-values": 0.0,
        "histogram-type": "equi-height",
    }
    assert read_histogram(json.dumps(histogram), None) == ColumnStatistics(min="Aa", max="Zz", distinct_count=22)


def test_a_column_of_nulls_has_no_bounds() -> None:
    histogram = {"buckets": [], "data-type": "int", "null-values": 1.0, "histogram-type": "singleton"}
    assert read_histogram(json.dumps(histogram), 4) == ColumnStatistics(num_nulls=4, distinct_count=0)
