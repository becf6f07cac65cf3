"""Listings are read piece by piece, whatever their size."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each

from queryserver.errors.files import StorageError
from queryserver.files.stores.webhdfs.tree import ListingScanner


def scanned(answer: bytes, cut: int) -> tuple[list[dict[str, Any]], int]:
    scanner, found = ListingScanner(), []
    for start in range(0, len(answer), cut):
        found += [dict(entry) for entry in scanner.feed(answer[start : start + cut])]
    return found, scanner.end()


def listing(entries: list[dict[str, Any]], remaining: int, **style: Any) -> bytes:
    partial = {"FileStatuses": {"FileStatus": entries}}
    return json.dumps(
        {"DirectoryListing": {"partialListing": partial, "remainingEntries": remaining}}, **style
    ).encode()


@given(
    names=st.lists(st.text(min_size=1), max_size=6),
    cut=st.integers(1, 40) | st.just(10_000),
    remaining=st.integers(0, 10**12),
    is_ascii=st.booleans(),
    comma=st.sampled_from([",", ",\n", ", "]),
)
def test_every_entry_is_found_wherever_the_answer_is_cut(names, cut, remaining, is_ascii, comma):
    entries = [{"pathSuffix": name, "length": 7, "nested": {"FileStatus": [name]}} for name in names]
    text = listing(entries, remaining, ensure_ascii=is_ascii, separators=(comma, ":")).decode("utf-8", "surrogatepass")
    assert scanned(text.encode("utf-8", "replace"), cut) == (
        [json.loads(json.dumps(entry).encode("utf-8", "replace")) for entry in entries],
        remaining,
    )


def test_a_listing_without_batches_has_nothing_remaining():
    answer = b'{"FileStatuses":{"FileStatus":[\n{"pathSuffix":"a"},\n{"pathSuffix":"b\\/c"}\n]}}'
    assert scanned(answer, 5) == ([{"pathSuffix": "a"}, {"pathSuffix": "b/c"}], 0)


def test_names_that_look_like_the_answer_are_names():
    entries = [
        {"pathSuffix": name} for name in ('"remainingEntries":5', '"FileStatus":[{}]', "},{", 'a"},{"b', "},\n{")
    ]
    for cut in (1, 7, 1000):
        for separators in ((",", ":"), (", ", ": ")):
            assert scanned(listing(entries, 3, separators=separators), cut) == (entries, 3)


@each(
    "answer",
    b"",
    b"<html><body>Login</body></html>",
    b'{"FileStatuses":{"FileStatus":[{"pathSuffix":"a"}',
    b'{"FileStatuses":{"FileStatus":[{"pathSuffix":"a"},{"pathSu',
    b'{"FileStatuses":{"FileStatus":[7]}}',
    b'{"FileStatuses":{"FileStatus":[{},7,{},{}]}}',
    b'{"FileStatuses":{"FileStatus":[{"pathSuffix":"\xff"}]}}',
    b'{"RemoteException":{"exception":"X"}}',
)
def test_what_is_no_whole_listing_is_a_failure_of_the_store(answer):
    with pytest.raises(StorageError):
        scanned(answer, 1000)


def test_an_entry_without_end_is_not_kept_in_memory():
    scanner = ListingScanner()
    pieces = [b'{"FileStatuses":{"FileStatus":[{"pathSuffix":"', *([b"x" * 65536] * 100)]
    with pytest.raises(StorageError):
        all(list(scanner.feed(piece)) == [] for piece in pieces)
