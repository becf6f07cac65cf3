"""Splitting request bodies into blocks, part sizes, and ETags of joined files."""

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from queryserver.errors.files import InvalidPath, PathNotFound, VerificationFailed
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.stores.s3.connection import S3Connection, S3Options, parse_location, parse_object_location
from queryserver.files.stores.s3.storage import PartNumbers, S3Storage
from queryserver.files.stores.s3.uploads import (
    MAX_PARTS,
    MIB,
    MIN_PART_BYTES,
    SINGLE_COPY_BYTES,
    SentPart,
    copy_ranges,
    joined_tag,
    part_bytes,
)
from queryserver.files.stores.transfer_blocks import Blocks

GIB = 1024 * MIB
TIB = 1024 * GIB
LARGEST_OBJECT = 5 * TIB
LARGEST_COPIED_PART = 5 * GIB


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_all_blocks_but_the_last_are_full():
    blocks = Blocks(body(b"ab", b"", b"cdefg", b"h"))
    assert [bytes(await blocks.take(3)) for _ in range(4)] == [b"abc", b"def", b"gh", b""]


@pytest.mark.parametrize("size", [1, 100 * MIB, 49 * GIB, 500 * GIB, LARGEST_OBJECT])
def test_announced_body_fits_into_the_part_limit(size):
    part = part_bytes(0, size)
    assert part >= MIN_PART_BYTES
    assert -(-size // part) <= MAX_PARTS


def test_parts_of_an_announced_body_stay_small_if_possible():
    assert part_bytes(40 * GIB, 48 * GIB) == MIN_PART_BYTES
    assert part_bytes(0, 160 * GIB) <= 17 * MIB


@pytest.mark.security("S10")
def test_excessive_announced_size_does_not_enlarge_parts():
    assert part_bytes(0, 10**18) <= part_bytes(0, LARGEST_OBJECT)


@pytest.mark.parametrize("announced", [None, 10 * MIB])
def test_body_of_unknown_size_fits_into_the_part_limit(announced):
    sent = parts = 0
    while sent < LARGEST_OBJECT:
        sent += part_bytes(sent, announced)
        parts += 1
    assert parts <= MAX_PARTS


@pytest.mark.storage(67)
@pytest.mark.parametrize("size", [SINGLE_COPY_BYTES + 1, 5 * GIB + 1, LARGEST_OBJECT])
def test_copy_ranges_cover_the_object_within_the_store_limits(size):
    ranges = list(copy_ranges(size))
    assert len(ranges) <= MAX_PARTS
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(end == start for (_, end), (start, _) in pairwise(ranges))
    assert all(MIN_PART_BYTES <= end - start <= LARGEST_COPIED_PART for start, end in ranges[:-1])
    assert 0 < ranges[-1][1] - ranges[-1][0] <= LARGEST_COPIED_PART


@pytest.mark.parametrize("part", [5 * MIB, 16 * MIB, 17 * MIB, 128 * MIB])
@pytest.mark.parametrize("parts", [1, 2, 900, 10_000])
def test_part_numbers_are_ordered_and_sufficient(part, parts):
    plan = PartPlan("b/f", parts * part - 3, part, parts)
    numbers = PartNumbers(plan)
    found = [each for index in range(parts) for each in numbers.of(index)]
    assert [number for number, _ in found] == sorted({number for number, _ in found})
    assert found[0][0] == 1
    assert found[-1][0] <= MAX_PARTS
    assert sum(size for _, size in found) == plan.size_bytes
    assert all(size >= MIN_PART_BYTES for _, size in found[:-1])
    if parts <= 900:
        assert max(size for _, size in found) <= 16 * MIB


def test_empty_part_has_a_number():
    assert list(PartNumbers(PartPlan("b/f", 0, 5 * MIB, 1)).of(0)) == [(1, 0)]


def test_joined_tag_is_known_if_part_tags_are_checksums() -> None:
    # A real store returned this ETag for two parts of 5 MiB each, filled with "y".
    part = "69a41dff505e8c36b0373e700e2c875d"
    assert joined_tag([SentPart(1, 1, part), SentPart(2, 1, part)]) == "796ca8c6e7129ef48d224336f6c20ffc-2"
    assert joined_tag([SentPart(1, 1, part), SentPart(2, 1, "opaque")]) == ""
    assert joined_tag([SentPart(1, 1, "z" * 32)]) == ""


async def test_part_sizes_must_add_up_to_the_file_size():
    plan = PartPlan("bucket/f", 9, 5, 2)
    # The plan is refused before any call to the store.
    storage = S3Storage(S3Connection(S3Options()))
    with pytest.raises(VerificationFailed):
        await storage.join_parts(plan, "upload", [StoredPart(0, 5, "a")], overwrite=False)


def test_paths_split_into_bucket_and_key():
    assert (parse_location("").bucket, parse_location("bucket").bucket, parse_location("bucket").key) == (
        "",
        "bucket",
        "",
    )
    location = parse_location("bucket/a/b.txt")
    assert (location.bucket, location.key, location.prefix, location.parent.path) == (
        "bucket",
        "a/b.txt",
        "a/b.txt/",
        "bucket/a",
    )
    assert parse_location("bucket/a").parent.key == ""
    assert location.label == "s3a://bucket/a/b.txt"


def test_key_is_limited_to_1024_bytes():
    name = "é" * 127
    longest = f"bucket/{'/'.join([name] * 4)}/abcd"
    assert len(parse_location(longest).key.encode()) == 1024
    with pytest.raises(InvalidPath):
        parse_location(f"{longest}e")


@pytest.mark.parametrize(
    "bucket", ["x", "a b", "arn:aws:s3:eu-west-1:1:accesspoint", "ex--use1-az4--x-s3", "é", "-a", "@"]
)
def test_invalid_bucket_name_is_not_found(bucket):
    with pytest.raises(PathNotFound):
        parse_location(f"{bucket}/key")


@pytest.mark.parametrize("path", ["", "bucket"])
def test_files_must_lie_in_buckets(path):
    with pytest.raises(InvalidPath):
        parse_object_location(path)
