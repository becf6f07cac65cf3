"""The Atlas adapter, tested against a scripted Atlas on the loopback interface (Contract platform 8.5)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr
from tests.engines.scripted_atlas import PASSWORD, USER, Fault, ScriptedAtlas, entity, scripted_atlas
from tests.unit.search.late_atlas import late_atlas

from queryserver.errors.statements import CatalogDenied, CatalogUnavailable
from queryserver.platform.addresses import AddressRules
from queryserver.platform.http_client import HttpClient
from queryserver.platform.settings.sections import CatalogSettings
from queryserver.search.atlas import AtlasCatalog
from queryserver.search.model import FacetName, Search, SourceAnswer, SourceName
from queryserver.search.query_language import parse_query

pytestmark = pytest.mark.platform(97)

NOW = datetime(2026, 1, 5, tzinfo=UTC)
ENTITIES = [
    entity("hive_db", "web@cm", owner="ana"),
    entity("hive_table", "web.sample_07@cm", owner="ana", description="Salaries", createTime=1767604211000),
    entity("hive_table", "web.sample_08@cm", owner="bob", tags=["PII"]),
    entity("hive_table", "web.view_07@cm", owner="bob", tableType="VIRTUAL_VIEW"),
    entity("hive_table", "web.sample_07@other", owner="ana"),
    entity("hive_column", "web.sample_07.salary@cm", owner="ana", tags=["PII", "Money"]),
    entity("hive_table", "shop.orders@cm", owner="ana", comment="what was sold as a sample"),
    entity(
        "hdfs_path",
        "hdfs://nn:8020/data/sample.csv@cm",
        path="hdfs://nn:8020/data/sample.csv",
        isFile=True,
        modifiedTime=1767604211000,
    ),
]


@pytest.fixture
async def atlas() -> AsyncIterator[ScriptedAtlas]:
    async with scripted_atlas(ENTITIES, {"PII": 2, "Money": 1, "Unused": 0}) as atlas:
        yield atlas


def server(atlas: ScriptedAtlas, **changes) -> CatalogSettings:
    """Return the settings for the scripted Atlas. Validation is skipped, so that timeouts may be fractions
    of a second.
    """
    given = {"url": atlas.url, "password": PASSWORD, "cluster": "cm", "timeout_s": 5.0, **changes}
    return CatalogSettings.model_construct(
        api_url=given["url"],
        server_user=USER,
        server_password=SecretStr(given["password"]),
        search_cluster=given["cluster"],
        timeout_s=given["timeout_s"],
    )


async def found(
    atlas: ScriptedAtlas,
    text: str,
    source: SourceName = SourceName.SQL,
    *,
    facets: frozenset[FacetName] = frozenset(),
    offset: int = 0,
    limit: int = 25,
    **changes,
) -> SourceAnswer:
    async with HttpClient(AddressRules()) as exchanges:
        catalog = AtlasCatalog(server(atlas, **changes), exchanges)
        return await catalog.page(Search(parse_query(text), NOW, facets=facets), source, offset=offset, limit=limit)


def names(answer: SourceAnswer) -> list[str]:
    return [match.record.original_name for match in answer.matches]


class TestQuestions:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("sample", ["web.sample_07", "web.sample_08"]),
            ("s?mple*07", ["web.sample_07"]),
            ("salaries", ["web.sample_07"]),
            ("type:table owner:ana", ["shop.orders", "web.sample_07"]),
            ("type:database", ["web"]),
            ("type:field", ["web.sample_07.salary"]),
            ("type:table type:database owner:ana", ["shop.orders", "web.sample_07", "web"]),
            ("type:galaxy", []),
            ("tag:PII", ["web.sample_07.salary", "web.sample_08"]),
            ("classification:Money", ["web.sample_07.salary"]),
            ("db:shop", ["shop.orders"]),
            ("table:sample_08", ["web.sample_08"]),
            ("source:hive salary", ["web.sample_07.salary"]),
            ("source:hdfs salary", []),
        ],
    )
    async def test_terms_and_filters_reach_atlas(self, atlas: ScriptedAtlas, text: str, expected: list[str]):
        assert names(await found(atlas, text)) == expected

    async def test_offset_and_limit_are_forwarded(self, atlas: ScriptedAtlas):
        answer = await found(atlas, "", offset=2, limit=3)
        assert (atlas.asked[-1][2]["offset"], atlas.asked[-1][2]["limit"]) == (2, 3)
        assert (len(answer.matches), answer.total) == (3, 6)

    async def test_objects_of_other_clusters_are_omitted(self, atlas: ScriptedAtlas):
        assert (await found(atlas, "sample_07 type:table")).total == 1
        assert (await found(atlas, "sample_07 type:table", cluster="")).total == 2

    async def test_hdfs_source_finds_files(self, atlas: ScriptedAtlas):
        answer = await found(atlas, "sample", SourceName.HDFS)
        assert names(answer) == ["hdfs://nn:8020/data/sample.csv"]
        assert answer.matches[0].record.type == "FILE"
        assert answer.matches[0].record.parent_path == "hdfs://nn:8020/data"

    async def test_types_unknown_to_atlas_have_no_objects(self, atlas: ScriptedAtlas):
        assert await found(atlas, "sample", SourceName.S3) == SourceAnswer()

    @pytest.mark.parametrize("end", ["", "/", "/api/atlas", "/api/atlas/", "/api/atlas/v2"])
    async def test_address_may_include_the_api_path(self, atlas: ScriptedAtlas, end: str):
        assert (await found(atlas, "orders", url=atlas.url + end)).total == 1


class TestRecords:
    async def test_entities_become_records_with_atlas_attributes(self, atlas: ScriptedAtlas):
        (match,) = (await found(atlas, "salary")).matches
        record = match.record
        assert (record.name, record.type, record.source_type, record.parent_path) == (
            "salary",
            "FIELD",
            "HIVE",
            "/web/sample_07",
        )
        assert record.tags == ("PII", "Money")
        assert record.further == {
            "internalType": "hive_column",
            "meanings": [],
            "meaningNames": [],
            "classifications": [],
            "original_name": "salary",
        }
        assert record.properties["owner"] == "ana"

    async def test_all_attributes_of_records_are_requested(self, atlas: ScriptedAtlas):
        (file,) = (await found(atlas, "sample", SourceName.HDFS)).matches
        assert (file.record.type, file.record.last_modified) == ("FILE", datetime(2026, 1, 5, 9, 10, 11, tzinfo=UTC))

    async def test_dialects_unknown_to_atlas_have_no_objects(self, atlas: ScriptedAtlas):
        async with HttpClient(AddressRules()) as exchanges:
            catalog = AtlasCatalog(server(atlas), exchanges)
            for dialects, total in ((frozenset({"trino"}), 0), (frozenset({"trino", "hive"}), 2)):
                search = Search(parse_query("sample_0"), NOW, dialects=dialects)
                assert (await catalog.page(search, SourceName.SQL, offset=0, limit=9)).total == total

    async def test_total_is_kept_beyond_the_last_page(self, atlas: ScriptedAtlas):
        assert (await found(atlas, "sample_0", offset=20)).total == 2

    async def test_timestamps_are_utc_and_views_are_recognized(self, atlas: ScriptedAtlas):
        (table,) = (await found(atlas, "salaries")).matches
        assert table.record.created == datetime(2026, 1, 5, 9, 10, 11, tzinfo=UTC)
        assert table.record.description == "Salaries"
        assert [match.record.type for match in (await found(atlas, "view_07")).matches] == ["VIEW"]


class TestFacets:
    async def test_facets_count_all_matches(self, atlas: ScriptedAtlas):
        answer = await found(atlas, "", facets=frozenset({FacetName.OWNER, FacetName.TAGS}), limit=1)
        assert len(answer.matches) == 1
        assert answer.facets == {FacetName.OWNER: {"ana": 4, "bob": 2}, FacetName.TAGS: {"PII": 2, "Money": 1}}

    @pytest.mark.parametrize(
        ("offset", "limit", "shown"), [(975, 25, 25), (990, 25, 25), (1000, 25, 25), (1090, 25, 15), (0, 1000, 1000)]
    )
    async def test_pages_continue_beyond_the_facet_limit(self, offset: int, limit: int, shown: int):
        tables = [entity("hive_table", f"web.t{number:04}@cm", owner="ana") for number in range(1105)]
        async with scripted_atlas(tables) as atlas:
            answer = await found(atlas, "", facets=frozenset({FacetName.OWNER}), offset=offset, limit=limit)
        assert names(answer) == [f"web.t{number:04}" for number in range(offset, offset + shown)]
        assert (answer.total, answer.truncated) == (1105, True)
        assert answer.facets == {FacetName.OWNER: {"ana": 1000}}

    async def test_empty_text_with_the_tags_facet_lists_all_classifications(self, atlas: ScriptedAtlas):
        answer = await found(atlas, "", facets=frozenset({FacetName.TAGS}))
        assert answer.facets == {FacetName.TAGS: {"PII": 2, "Money": 1, "Unused": 0}}
        assert answer.matches == ()

    @pytest.mark.parametrize(
        "metrics", [Fault(403), Fault(404), Fault(200, b"[]"), Fault(200, b'{"tag": [1]}'), Fault(200, b'{"data": 7}')]
    )
    async def test_classifications_are_listed_even_without_counts(self, atlas, metrics) -> None:
        listed = Fault(200, b'{"classificationDefs": [{"name": "PII"}]}')
        atlas.faults.extend([listed, metrics])
        answer = await found(atlas, "", facets=frozenset({FacetName.TAGS}))
        assert answer.facets == {FacetName.TAGS: {"PII": 0}}

    async def test_classification_counts_may_be_nested_deeper(self, atlas: ScriptedAtlas):
        listed = Fault(200, b'{"classificationDefs": [{"name": "PII"}]}')
        atlas.faults.extend([listed, Fault(200, b'{"data": {"tag": {"tagEntities": {"PII": 5}}}}')])
        assert (await found(atlas, "", facets=frozenset({FacetName.TAGS}))).facets == {FacetName.TAGS: {"PII": 5}}


class TestFailures:
    @pytest.mark.parametrize("status", [401, 403])
    async def test_rejected_login_is_denied(self, atlas: ScriptedAtlas, status: int):
        atlas.faults.append(Fault(status))
        with pytest.raises(CatalogDenied):
            await found(atlas, "sample")

    async def test_wrong_password_is_denied_and_not_shown(self, atlas: ScriptedAtlas):
        with pytest.raises(CatalogDenied) as caught:
            await found(atlas, "sample", password="wrong-secret")
        assert "wrong-secret" not in caught.value.message
        assert PASSWORD not in repr(server(atlas))

    @pytest.mark.parametrize("fault",
        [Fault(500, b"java.lang.NullPointerException at org.apache"), Fault(200, b"<html>login</html>"),
        Fault(200, b"[]"), Fault(200, b'{"entities": 7}'), Fault(404, b"no such page"),
        Fault(302, headers={"Location": "http://127.0.0.1:1/elsewhere"})])  # fmt: skip
    async def test_invalid_response_is_unavailable_and_redirects_are_not_followed(
        self, atlas: ScriptedAtlas, fault: Fault
    ):
        atlas.asked.clear()
        atlas.faults.append(fault)
        with pytest.raises(CatalogUnavailable) as caught:
            await found(atlas, "sample")
        assert "java" not in caught.value.message
        assert len(atlas.asked) == 1

    async def test_late_response_times_out(self):
        """A response after half a second exceeds a timeout of 0.2 s, but not a timeout of 30 s."""
        async with late_atlas(ENTITIES, after_s=0.5) as atlas:
            with pytest.raises(CatalogUnavailable, match="in time"):
                await found(atlas, "sample", timeout_s=0.2)
            assert (await found(atlas, "orders", timeout_s=30)).total == 1

    @pytest.mark.parametrize("url",
        ["http://127.0.0.1:port", "http://127.0.0.1:99999", "http://[::1", "http://:21000", "http://127.0.0.1/\x07",
        "127.0.0.1:21000", "127.0.0.1", "ftp://127.0.0.1"])  # fmt: skip
    async def test_malformed_address_is_unavailable(self, atlas: ScriptedAtlas, url: str):
        for text, facets in (("sample", frozenset[FacetName]()), ("", frozenset({FacetName.TAGS}))):
            with pytest.raises(CatalogUnavailable, match="malformed") as caught:
                await found(atlas, text, facets=facets, url=url)
            assert url not in caught.value.message

    async def test_unreachable_server_is_unavailable(self, atlas: ScriptedAtlas):
        with pytest.raises(CatalogUnavailable):
            await found(atlas, "sample", url="http://127.0.0.1:1")
