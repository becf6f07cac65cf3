"""Multipart bodies that contain a file, parsed while they arrive."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable

import pytest
from tests.refusals import raises_code

from queryserver.errors.base import BodyTooSlow, InvalidParameter, MissingParameter, PayloadTooLarge
from queryserver.errors.files import InvalidName
from queryserver.formats.multipart import PIECE_BYTES, MultipartLimits, MultipartStream

BOUNDARY = "----b0undary"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def part(disposition: str, content: bytes = b"") -> bytes:
    return f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"


def field(name: str, value: str) -> bytes:
    return part(f'name="{name}"', value.encode())


def file(content: bytes, name: str = "a.csv", at: str = "file") -> bytes:
    return part(f'name="{at}"; filename="{name}"', content)


END = f"--{BOUNDARY}--\r\n".encode()


async def pieces(body: bytes, sizes: Iterable[int] = (65536,)) -> AsyncIterator[bytes]:
    start = 0
    sizes = list(sizes)
    for turn in range(len(body)):
        if start >= len(body):
            return
        size = sizes[turn % len(sizes)]
        yield body[start : start + size]
        start += size


async def read(body: bytes, *, sizes: Iterable[int] = (65536,), **more: object) -> tuple[str, bytes]:
    stream = MultipartStream(pieces(body, sizes), TYPE, **more)  # type: ignore[arg-type]
    name = await stream.file_name()
    return name, b"".join([piece async for piece in stream.content()])


@pytest.mark.parametrize("seed", range(20))
async def test_file_is_the_same_at_any_chunk_boundary(seed: int) -> None:
    chance = random.Random(seed)
    # The content is full of strings that resemble the start of a boundary.
    likenesses = [b"\r\n--", b"\r\n", b"--", BOUNDARY.encode(), b"\r\n--" + BOUNDARY.encode()[:-1], b"x", b"\0"]
    content = b"".join(chance.choice(likenesses) for _ in range(300))
    while b"\r\n--" + BOUNDARY.encode() in content:
        content = content.replace(b"\r\n--" + BOUNDARY.encode(), b"")
    body = field("overwrite", "true") + file(content) + field("more", "x") + END
    assert await read(body, sizes=[chance.randint(1, 40) for _ in range(7)]) == ("a.csv", content)


async def test_chunks_are_joined_up_to_one_mebibyte() -> None:
    content = random.Random(1).randbytes(3 * PIECE_BYTES + 5)
    for sizes in ([64 * 1024], [len(content) * 2]):
        stream = MultipartStream(pieces(file(content) + END, sizes), TYPE)
        await stream.file_name()
        found = [piece async for piece in stream.content()]
        assert [len(piece) for piece in found] == [PIECE_BYTES] * 3 + [5]
        assert b"".join(found) == content


async def test_fields_before_the_file_are_known_before_its_content() -> None:
    stream = MultipartStream(pieces(field("dest", "/é") + file(b"abc") + END, [10]), TYPE)
    assert await stream.file_name() == "a.csv"
    assert stream.fields == [("dest", "/é")]


async def test_file_may_be_empty() -> None:
    assert await read(file(b"") + END) == ("a.csv", b"")


@pytest.mark.storage(84)
async def test_fields_controlling_the_upload_must_precede_the_file() -> None:
    with pytest.raises(InvalidParameter, match="before the file"):
        await read(file(b"abc") + field("dest", "/") + END, leading_fields={"dest"})


@pytest.mark.parametrize("cut", [1, 5, 20, 300])
async def test_truncated_body_is_aborted_before_its_file_ends(cut: int) -> None:
    body = field("a", "b") + file(b"x" * 300) + END
    with raises_code("upload_aborted"):
        await read(body[: -cut - 2])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (END, MissingParameter),
        (field("a", "b") + END, MissingParameter),
        (field("file", "no file") + END, MissingParameter),
        (file(b"1") + file(b"2") + END, InvalidParameter),
        (file(b"1", at="other") + END, InvalidParameter),
        (part("filename=a", b"1") + END, InvalidParameter),
        (f"--{BOUNDARY}\r\n\r\nx\r\n".encode() + END, InvalidParameter),
        (part('name="a"', b"\xff") + file(b"") + END, InvalidParameter),
        (part('name="file"; filename="a"; filename="b"') + END, InvalidParameter),
        (part('name="file"; filename="a" b') + END, InvalidParameter),
        (b"no multipart at all" + END, InvalidParameter),
    ],
)
async def test_body_without_exactly_one_file_is_rejected(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await read(body, file_fields=("local_file", "file"))


@pytest.mark.security("S11")
@pytest.mark.security("T6")
async def test_excessive_parts_are_rejected_early() -> None:
    stream = MultipartStream(pieces(field("a", "b") * 10_000, [4096]), TYPE)
    with raises_code("too_many_parts"):
        await stream.file_name()
    assert stream.bytes_read <= 4096


@pytest.mark.security("T6")
@pytest.mark.parametrize("body",
    [f"--{BOUNDARY}\r\nX: ".encode() + b"x" * 9000, f"--{BOUNDARY}\r\n".encode() + b"X: y\r\n" * 2000,
    field("a", "x" * 70_000), file(b"abc") + END + b"x" * 600_000])  # fmt: skip
async def test_everything_but_the_file_is_limited(body: bytes) -> None:
    with pytest.raises(PayloadTooLarge):
        await read(body)


@pytest.mark.security("T6")
async def test_slow_body_is_abandoned_and_slow_consumer_is_not() -> None:
    limits = MultipartLimits(slow_bytes=1000, slow_s=0.3)

    async def dripping() -> AsyncIterator[bytes]:
        for byte in file(b"x" * 1000):
            yield bytes([byte])
            await asyncio.sleep(0.02)

    stream = MultipartStream(dripping(), TYPE, limits=limits)
    with pytest.raises(BodyTooSlow):
        await stream.file_name()

    patient = MultipartStream(pieces(file(b"y" * 5 * PIECE_BYTES) + END, [PIECE_BYTES // 2]), TYPE, limits=limits)
    await patient.file_name()
    taken = 0
    async for piece in patient.content():
        taken += len(piece)
        await asyncio.sleep(0.15)
    assert taken == 5 * PIECE_BYTES


@pytest.mark.security("T2")
@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('name="file"; filename="C:\\dir\\x.csv"', "C:\\dir\\x.csv"),
        ('name="file"; filename="../../x"', "../../x"),
        ('filename="a;b=c.csv"; name=file', "a;b=c.csv"),
        ('name="file"; filename="a \\"b\\".csv"', 'a "b".csv'),
        ('name="file"; filename="日本 é?#%.csv"', "日本 é?#%.csv"),
        ('name="file"; filename="x"; filename*=UTF-8\'\'%e2%82%ac%20rates', "€ rates"),
        ("name=\"file\"; filename*=utf-8'en'..%2F..%2Fx", "../../x"),
        ("name=\"file\"; filename*=iso-8859-1''%e9", "é"),
        ('name="file"; filename="=?UTF-8?B?4oKsLmNzdg==?="', "€.csv"),
        ('name="file"; filename="=?UTF-8?Q?a=0Ab?="', "a\nb"),
        ('name="file"; filename="a=?b"', "a=?b"),
        ('name="file"; filename=""', ""),
    ],
)
async def test_file_name_is_decoded_as_the_client_sent_it(disposition: str, name: str) -> None:
    assert await read(part(disposition) + END) == (name, b"")


@pytest.mark.parametrize("disposition",
    ["name=file; filename*=UTF-8''%ff", "name=file; filename*=utf-7''a", "name=file; filename*=a",
    "name=file; filename*0=a; filename*1=b", 'name=file; filename="=?none?B?YQ==?="',
    'name=file; filename="=?undefined?Q?a?="', 'name=file; filename="=?euc-jp?Q?=8F=B0=A1?="',
    'name=file; filename="=?a\0b?Q?a?="', 'name=file; filename="=?é?Q?a?="'])  # fmt: skip
async def test_undecodable_file_name_is_rejected(disposition: str) -> None:
    with pytest.raises(InvalidName):
        await read(part(disposition) + END)


async def test_content_type_requires_a_boundary_of_valid_length() -> None:
    for content_type in ("multipart/form-data", f"multipart/form-data; boundary={'b' * 300}"):
        with pytest.raises(InvalidParameter):
            MultipartStream(pieces(b""), content_type)
