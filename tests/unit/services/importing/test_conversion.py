"""A file as portions, with something made in advance (imports/running.py)."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from tests.fakes.import_files import MemoryFile, MemoryWorkbooks
from tests.refusals import raises_code

from queryserver.formats.conversion import TargetColumn
from queryserver.imports.model import MAX_FIELD_CHARACTERS, STRING, BaseType, ColumnType, Origin
from queryserver.imports.plans import FileReading, ImportPlan
from queryserver.imports.running import Conversion, Counted, ahead

COLUMNS = (TargetColumn(0, "n", ColumnType(BaseType.INT32)), TargetColumn(1, "text", STRING))


def conversion(content: bytes, seen: list[int], *, piece_bytes: int = 1024 * 1024) -> Conversion:
    reading = FileReading(Origin.LOCAL, "upload/x/a.csv", True, 2)
    plan = ImportPlan("a.csv", reading, COLUMNS, ("INT", "TEXT"), None, "t")
    file = MemoryFile(content, piece_bytes=piece_bytes)
    return Conversion(plan, file, MemoryWorkbooks(), ThreadPoolExecutor(2), seen.append)


async def test_both_passes_see_the_same_rows() -> None:
    content = b"n,text\n" + b"".join(b"%d,%s\n" % (n, b"x" if n % 100 else b"a,b") for n in range(5000))
    seen: list[int] = []
    made = conversion(content, seen, piece_bytes=1000)
    counted = await made.count(explain=3)
    assert (counted.rows, counted.bad, len(counted.explained)) == (5000, 50, 3)
    assert sum(seen) == len(content)
    again = Counted()
    numbers = [number async for batch in made.batches(again) for number in batch.column(0).to_pylist()]
    assert numbers == [n for n in range(5000) if n % 100]
    assert again.agrees_with(counted)


async def test_no_batch_is_much_larger_than_four_mib() -> None:
    content = b"n,text\n" + b"1,\n" * 3_000_000
    made = conversion(content, [], piece_bytes=len(content))
    sizes = [batch.nbytes async for batch in made.batches(Counted())]
    assert len(sizes) > 1
    assert max(sizes) < 6 * 1024 * 1024


async def test_what_reading_raises_arrives() -> None:
    made = conversion(b"n,text\n1,a\n2," + b"x" * (MAX_FIELD_CHARACTERS + 1) + b"\n", [])
    with raises_code("record_too_long"):
        await made.count(explain=1)


async def test_one_item_is_made_in_advance_and_all_ends_with_its_reader() -> None:
    made: list[int] = []
    ended = asyncio.Event()

    async def items() -> AsyncGenerator[int]:
        try:
            for number in range(1, 100):
                made.append(number)
                yield number
        finally:
            ended.set()

    source = items()
    async with aclosing(source), aclosing(ahead(source)) as coming:
        async for number in coming:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert made[-1] == number + 1
            if number == 3:
                break
    assert ended.is_set()
    assert made == [1, 2, 3, 4]
