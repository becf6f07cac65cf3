"""The ResultStore contract on real stores, opened from settings as the application does."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contract.results_contract import ResultStoreContract, mixed_table, numbered
from tests.engines.result_places import ResultsPlace, abfs_results, hdfs_results, s3_results

from queryserver.administration.configuration_check import check_results
from queryserver.errors.files import PathNotFound
from queryserver.platform.settings.tree import Settings
from queryserver.results.stores import open_results


def settings_of(place: ResultsPlace, data_dir: Path, **task_server: object) -> Settings:
    desktop = {"data_dir": data_dir, "task_server": {"result_file_storage": place.setting, **task_server}}
    return Settings.model_validate({"desktop": desktop, **place.tables})


class RemoteResults(ResultStoreContract):
    """The ResultStore contract on the fixture `place`, a new and empty location for each test."""

    @pytest.fixture
    async def place(self) -> ResultsPlace:
        raise NotImplementedError

    @pytest.fixture
    def settings(self, place, tmp_path) -> Settings:
        return settings_of(place, tmp_path)

    @pytest.fixture
    async def opened(self, settings):
        async with open_results(settings) as opened:
            yield opened

    @pytest.fixture
    def results(self, opened):
        return opened.store

    @pytest.mark.platform(111)
    async def test_another_process_reads_the_same_rows(self, results, settings):
        statement_id, table = uuid4(), mixed_table(3000)
        await results.append(statement_id, fence=1, number=0, start_row=0, table=table)
        async with open_results(settings) as elsewhere:
            page = await elsewhere.store.rows(statement_id, fence=1, number=0, start_row=2000, rows=100)
            assert page.to_pylist() == table.slice(2000, 100).to_pylist()
            whole = await elsewhere.store.read(statement_id, fence=1, number=0)
            assert whole.to_pylist() == table.to_pylist()

    async def test_rows_are_reread_from_local_disk(self, results, settings, tmp_path):
        statement_id = uuid4()
        await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 5000))
        await results.rows(statement_id, fence=1, number=0, start_row=0, rows=10)
        [kept] = list((tmp_path / "result-cache").rglob("*.arrow"))
        assert kept.stat().st_mode & 0o777 == 0o600
        await results.delete(statement_id)
        assert not kept.exists()
        with pytest.raises(PathNotFound):
            await results.rows(statement_id, fence=1, number=0, start_row=0, rows=10)

    async def test_listing_returns_stored_statements_and_times(self, opened):
        ids = {uuid4() for _ in range(3)}
        before = datetime.now(UTC) - timedelta(minutes=5)
        for one in ids:
            await opened.store.append(one, fence=1, number=0, start_row=0, table=numbered(0, 1))
        found = [stored async for batch in opened.listing.statements() async for stored in _each(batch)]
        assert {stored.id for stored in found} == ids
        for stored in found:
            written = await opened.listing.last_written(stored)
            assert written is not None
            assert before < written < datetime.now(UTC) + timedelta(minutes=5)

    async def test_empty_store_lists_nothing(self, opened):
        assert [batch async for batch in opened.listing.statements()] == []
        assert await opened.listing.remove_orphans(timedelta(0), datetime.now(UTC)) == 0

    async def test_configuration_check_uses_store_and_leaves_nothing(self, settings, opened):
        assert list(await check_results(settings)) == []
        later = datetime.now(UTC) + timedelta(days=1)
        assert await opened.listing.remove_orphans(timedelta(0), later) == 0


async def _each(batch):
    for one in batch:
        yield one


@pytest.mark.engine("s3")
class TestResultsInS3(RemoteResults):
    @pytest.fixture
    async def place(self, s3_server):
        return await s3_results(s3_server)

    async def test_encryption_is_requested_from_store(self, place, tmp_path, s3_server):
        """The gateway does not encrypt, so the test checks the client's requests."""
        setting = place.setting.replace('"region"', '"sse": "AES256", "region"')
        async with open_results(settings_of(ResultsPlace(setting), tmp_path)) as opened:
            connection = opened.store._storage._connection
            sent = []
            client = await connection._open_client()
            client.meta.events.register("before-call.s3.PutObject", lambda params, **_: sent.append(params["headers"]))
            await opened.store.append(uuid4(), fence=1, number=0, start_row=0, table=numbered(0, 1))
        assert [headers["x-amz-server-side-encryption"] for headers in sent] == ["AES256"]


@pytest.mark.engine("hdfs")
class TestResultsInHdfs(RemoteResults):
    @pytest.fixture
    async def place(self, hdfs_cluster):
        return await hdfs_results(hdfs_cluster)


@pytest.mark.engine("azurite")
class TestResultsInAzure(RemoteResults):
    @pytest.fixture
    async def place(self, azurite):
        return await abfs_results(azurite)
