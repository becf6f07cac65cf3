"""The part of the storage contract that tests multipart uploads (Contract storage 9.2)."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.contract.storage_basis import StorageBasis, body, content, failing_body, names, put
from tests.refusals import raises_code

from queryserver.errors.files import PathExists, PathNotFound, VerificationFailed, upload_aborted
from queryserver.files.protocol import PartPlan, ReadableParts, Storage, StorageTraits, StoredPart


class PartsContract(StorageBasis):
    """The `StorageContract` tests for multipart uploads. The uploaded files are 2.5 times as large as the store's
    smallest part.
    """

    @pytest.fixture
    def whole(self, traits: StorageTraits) -> bytes:
        part_bytes = max(traits.min_part_bytes, 4000)
        return b"".join(bytes([97 + number]) * part_bytes for number in range(3))[: part_bytes * 5 // 2]

    @pytest.fixture
    def plan(self, base: str, whole: bytes, traits: StorageTraits) -> PartPlan:
        return PartPlan(f"{base}/file", len(whole), max(traits.min_part_bytes, 4000), 3)

    @pytest.mark.storage(89)
    @pytest.mark.power("Uploads in parts")
    async def test_unordered_and_repeated_parts_make_the_file(
        self, storage: Storage, same_storage: Storage, base: str, plan: PartPlan, whole: bytes
    ) -> None:
        staging = await storage.begin_parts(plan)
        parts = {}
        for index in (2, 0, 1, 0):
            parts[index] = await same_storage.write_part(plan, staging, index, body(part_of(plan, whole, index)))
            assert (parts[index].index, parts[index].size_bytes) == (index, len(part_of(plan, whole, index)))
            assert await names(storage, base) == []
        status = await same_storage.join_parts(plan, staging, in_order(parts), overwrite=False)
        assert (status.path, status.size_bytes) == (plan.path, len(whole))
        assert await content(storage, plan.path) == whole
        assert await names(storage, base) == ["file"]

    @pytest.mark.storage(89)
    @pytest.mark.power("Uploads in parts")
    async def test_parts_can_be_uploaded_concurrently(
        self, storage: Storage, base: str, plan: PartPlan, whole: bytes
    ) -> None:
        staging = await storage.begin_parts(plan)
        parts = await asyncio.gather(
            *(storage.write_part(plan, staging, index, body(part_of(plan, whole, index))) for index in range(3))
        )
        await storage.join_parts(plan, staging, parts, overwrite=False)
        assert await content(storage, plan.path) == whole
        assert await names(storage, base) == ["file"]

    @pytest.mark.power("Uploads in parts")
    async def test_parts_are_read_before_they_replace_anything(
        self, storage: Storage, same_storage: Storage, plan: PartPlan, whole: bytes
    ) -> None:
        await put(storage, plan.path, b"former")
        staging = await storage.begin_parts(plan)
        parts = await all_parts(storage, plan, staging, whole)
        assert isinstance(same_storage, ReadableParts) is self.facts.reads_parts
        if not isinstance(same_storage, ReadableParts):
            return
        for _ in range(2):
            assert b"".join([piece async for piece in same_storage.read_parts(plan, staging, parts)]) == whole
        assert await content(storage, plan.path) == b"former"
        await storage.join_parts(plan, staging, parts, overwrite=True)
        assert await content(storage, plan.path) == whole

    @pytest.mark.power("Uploads in parts")
    async def test_failed_part_keeps_its_previous_version(self, storage: Storage, plan: PartPlan, whole: bytes) -> None:
        staging = await storage.begin_parts(plan)
        parts = await all_parts(storage, plan, staging, whole)
        with raises_code("upload_aborted"):
            await storage.write_part(plan, staging, 1, failing_body(b"zzz", error=upload_aborted("gone")))
        with pytest.raises(VerificationFailed):
            await storage.write_part(plan, staging, 1, body(b"too short"))
        with pytest.raises(VerificationFailed):
            await storage.write_part(plan, staging, 2, body(part_of(plan, whole, 0), b"too long"))
        await storage.join_parts(plan, staging, parts, overwrite=False)
        assert await content(storage, plan.path) == whole

    @pytest.mark.storage(85)
    @pytest.mark.power("Uploads in parts")
    async def test_taken_name_keeps_file_and_parts(
        self, storage: Storage, base: str, plan: PartPlan, whole: bytes
    ) -> None:
        staging = await storage.begin_parts(plan)
        parts = await all_parts(storage, plan, staging, whole)
        await put(storage, plan.path, b"first")
        with pytest.raises(PathExists):
            await storage.join_parts(plan, staging, parts, overwrite=False)
        assert await content(storage, plan.path) == b"first"
        await storage.join_parts(plan, staging, parts, overwrite=True)
        assert await content(storage, plan.path) == whole
        assert await names(storage, base) == ["file"]

    @pytest.mark.power("Uploads in parts")
    async def test_missing_part_makes_no_file(self, storage: Storage, base: str, plan: PartPlan, whole: bytes) -> None:
        staging = await storage.begin_parts(plan)
        parts = await all_parts(storage, plan, staging, whole)
        with pytest.raises(VerificationFailed):
            await storage.join_parts(plan, staging, parts[:2], overwrite=False)
        assert await names(storage, base) == []
        await storage.join_parts(plan, staging, parts, overwrite=False)
        assert await content(storage, plan.path) == whole

    @pytest.mark.power("Uploads in parts")
    async def test_discarded_parts_leave_nothing(
        self, storage: Storage, base: str, plan: PartPlan, whole: bytes
    ) -> None:
        staging = await storage.begin_parts(plan)
        await storage.write_part(plan, staging, 0, body(part_of(plan, whole, 0)))
        await storage.discard_parts(plan, staging)
        await storage.discard_parts(plan, staging)
        with pytest.raises(PathNotFound):
            await storage.write_part(plan, staging, 1, body(part_of(plan, whole, 1)))
        await storage.delete(base, recursive=False)

    @pytest.mark.storage(92)
    @pytest.mark.power("Uploads in parts")
    async def test_parts_in_missing_directory_are_refused(self, storage: Storage, base: str) -> None:
        with pytest.raises(PathNotFound):
            await storage.begin_parts(PartPlan(f"{base}/missing/file", 1, 1, 1))


def part_of(plan: PartPlan, whole: bytes, index: int) -> bytes:
    start = index * plan.part_bytes
    return whole[start : start + plan.part_bytes]


def in_order(parts: dict[int, StoredPart]) -> list[StoredPart]:
    return [parts[index] for index in sorted(parts)]


async def all_parts(storage: Storage, plan: PartPlan, staging: str, whole: bytes) -> Sequence[StoredPart]:
    return [
        await storage.write_part(plan, staging, index, body(part_of(plan, whole, index))) for index in range(plan.parts)
    ]
