"""Servers put the statement, up to megabytes of it, into their complaint."""

import time

import pytest

from queryserver.engines.hiveserver2.errors import clean_message


@pytest.mark.parametrize("unit", ["\n", " \n", "a.", "\n  at ", "x.Y: ", "file:/a "])
def test_the_time_for_a_message_grows_with_its_length_only(unit: str) -> None:
    begun = time.perf_counter()
    clean_message("org.apache.ParseException: bad\n" + unit * (500_000 // len(unit)) + "q")
    # What grows with the square takes minutes.
    assert time.perf_counter() - begun < 5
