"""Shared Key: examples of the public reference, and what our client signs."""

import pytest

from queryserver.files.stores.adls.credentials import signature, string_to_sign

COMMON = {"x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "x-ms-version": "2015-02-21"}
REFERENCE = (
    "GET\n\n\n\n\n\n\n\n\n\n\n\n"
    "x-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n"
    "/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
)


def test_the_example_of_the_reference_is_built():
    """Authorize with Shared Key, "Constructing the signature string"."""
    query = [("restype", "container"), ("comp", "metadata"), ("timeout", "20")]
    assert string_to_sign("myaccount", "GET", "/mycontainer", query, COMMON) == REFERENCE


def test_headers_stand_in_their_lines():
    headers = {**COMMON, "content-length": "11", "content-type": "text/plain", "range": "bytes=0-9", "if-match": '"1"'}
    lines = string_to_sign("a", "PUT", "/c/%C3%BC", [], headers).split("\n")
    assert lines[:12] == ["PUT", "", "", "11", "", "text/plain", "", "", '"1"', "", "", "bytes=0-9"]
    assert lines[-1] == "/a/c/%C3%BC"


@pytest.mark.parametrize(("length", "line"), [("0", ""), ("1", "1")])
def test_a_length_of_nothing_is_an_empty_line(length, line):
    assert string_to_sign("a", "PUT", "/c", [], {"content-length": length}).split("\n")[3] == line


def test_parameters_are_sorted_in_lower_case_and_values_joined():
    query = [("maxResults", "5"), ("b", "2"), ("a", "y"), ("a", "x")]
    assert string_to_sign("a", "GET", "/", query, {}).split("\n")[-3:] == ["a:x,y", "b:2", "maxresults:5"]


def test_the_signature_is_of_the_key():
    first, second = (signature(key, "a", "GET", "/", [], COMMON) for key in (b"one", b"two"))
    assert first != second
    assert first == signature(b"one", "a", "GET", "/", [], dict(reversed(COMMON.items())))
