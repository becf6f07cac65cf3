"""Documents are saved, listed, moved, deleted and restored (Contract documents 2, 3, 6, 7)."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from tests.api.conftest import ApiOpener
from tests.api.documents.calls import STATEMENT, listed, read, save, share
from tests.api.driving import Api, Caller, verdict
from tests.api.test_logs import Event, about, audited

__all__ = ["audited"]  # a fixture

CONTENT: dict[str, Any] = {
    "name": "Daily sales",
    "description": "Orders of a day",
    "statement": STATEMENT,
    "parameters": [{"name": "day", "type": "date", "default": "2026-01-05"}],
    "connector": "hive2",
    "database": "shop",
    "tags": ["sales", "daily"],
}


def history(versions: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(one["version"], one["name"]) for one in versions]


async def versions_of(user: Caller, uuid: str) -> list[dict[str, Any]]:
    return (await user.get(f"documents/{uuid}/versions")).json()["versions"]


class TestSaves:
    @pytest.mark.documents(1)
    async def test_saved_document_is_returned_with_all_keys(self, ana: Caller):
        saved = await save(ana, **CONTENT, folder="/reports")
        expected = {
            **CONTENT,
            "folder": "/reports",
            "type": "query-hive",
            "dialect": "hive",
            "owner": ana.username,
            "version": 1,
            "modified_by": ana.username,
            "permission": "manage",
            "is_trashed": False,
            "grants": [],
        }
        assert expected.items() <= saved.items()
        assert await read(ana, saved["uuid"]) == saved
        entry = {key: value for key, value in saved.items() if key not in {"statement", "parameters", "grants"}}
        assert await listed(ana) == [entry]

    @pytest.mark.documents(2)
    async def test_absent_and_null_keys_stay(self, ana: Caller):
        saved = await save(ana, **CONTENT, folder="/a")
        changed = await save(ana, uuid=saved["uuid"], version=1, name="Other", description=None, tags=None)
        unlike = {"name": "Other", "version": 2, "modified": changed["modified"], "last_modified": changed["modified"]}
        assert changed == {**saved, **unlike}
        cleared = await save(ana, uuid=saved["uuid"], version=2, connector="", database="", tags=[], parameters=[])
        assert (cleared["connector"], cleared["dialect"], cleared["type"]) == (None, None, "notebook")
        assert (cleared["database"], cleared["tags"], cleared["parameters"]) == (None, [], [])

    @pytest.mark.documents(3)
    async def test_stale_save_is_refused_and_changes_nothing(self, ana: Caller):
        saved = await save(ana, **CONTENT)
        changed = await save(ana, uuid=saved["uuid"], version=1, statement="rows 4")
        for version in ({"version": 1}, {"version": 3}, {}):
            document = {"uuid": saved["uuid"], "statement": "rows 5", **version}
            response = await ana.post_json("documents/save", document=document)
            assert verdict(response) == (409, -1, "version_conflict")
            assert response.json()["version"] == 2
            assert response.json()["message"].startswith("version is required") is (version == {})
        assert await read(ana, saved["uuid"]) == changed

    @pytest.mark.documents(4)
    async def test_one_of_concurrent_saves_succeeds_and_the_former_text_is_kept(self, ana: Caller):
        saved = await save(ana, **CONTENT)
        documents = [{"uuid": saved["uuid"], "version": 1, "statement": f"rows {number}"} for number in range(10)]
        answers = await asyncio.gather(*(ana.post_json("documents/save", document=one) for one in documents))
        assert sorted(one.status_code for one in answers) == [200] + [409] * 9
        [winner] = [one.json()["document"] for one in answers if one.status_code == 200]
        assert await read(ana, saved["uuid"]) == winner
        former = (await ana.get(f"documents/{saved['uuid']}/versions/1")).json()["version"]
        assert former["statement"] == STATEMENT

    @pytest.mark.documents(5)
    async def test_repeated_save_succeeds_and_keeps_the_version(self, ana: Caller):
        uuid = str(uuid4())
        first = await save(ana, uuid=uuid, **CONTENT)
        assert await save(ana, uuid=uuid, **CONTENT) == first
        change = {"uuid": uuid, "version": 1, "statement": "rows 4"}
        second = await save(ana, **change)
        assert await save(ana, **change) == second
        assert history(await versions_of(ana, uuid)) == [(2, "Daily sales"), (1, "Daily sales")]

    @pytest.mark.documents(5)
    async def test_concurrent_first_saves_create_one_document(self, ana: Caller):
        document = {"uuid": str(uuid4()), **CONTENT}
        answers = await asyncio.gather(*(ana.post_json("documents/save", document=document) for _ in range(5)))
        assert {one.status_code for one in answers} == {200}
        assert sorted(one.json()["save_as"] for one in answers) == [False] * 4 + [True]

    @pytest.mark.documents(6)
    async def test_names_folders_and_tags_are_normalized(self, ana: Caller):
        saved = await save(ana, name=" \t", folder=" reports // daily /", tags=[" a  b ", "c", "a b"])
        assert (saved["name"], saved["folder"], saved["tags"]) == ("Untitled", "/reports/daily", ["a b", "c"])
        assert (saved["statement"], saved["type"], saved["version"]) == ("", "notebook", 1)

    @pytest.mark.documents(6)
    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": "x" * 256},
            {"name": "a\x07b"},
            {"description": "x" * 5001},
            {"database": "x" * 1001},
            {"folder": "/" + "x" * 400},
            {"folder": "/a/../b"},
            {"folder": "/a\x1bb"},
            {"tags": ["x" * 51]},
            {"tags": [""]},
            {"tags": [str(number) for number in range(21)]},
            {"parameters": [{"name": "a"}, {"name": "a"}]},
            {"parameters": [{"name": "1a"}]},
            {"parameters": [{"name": "a", "type": "money"}]},
            {"parameters": [{"name": "a", "type": "date", "default": "tomorrow"}]},
            {"parameters": [{"name": "a", "type": "bigint", "default": {"type": "date", "value": "x"}}]},
            {"parameters": [{"name": f"a{number}"} for number in range(101)]},
            {"parameters": [{"name": "a", "default": "x" * 16385}]},
            {"uuid": "not-a-uuid"},
            {"version": "one"},
        ],
        ids=str,
    )
    async def test_invalid_values_are_refused(self, ana: Caller, wrong: dict[str, Any]):
        response = await ana.post_json("documents/save", document={"name": "x", **wrong})
        assert verdict(response) == (400, -1, "invalid_parameter")
        assert await listed(ana) == []

    @pytest.mark.documents(6)
    @pytest.mark.parametrize(
        "largest",
        [
            {"name": "ä" * 255},
            {"description": "ä" * 5000},
            {"database": "ä" * 1000},
            {"folder": "/" + "x" * 399},
            {"tags": [f"{number:050}" for number in range(20)]},
            {"parameters": [{"name": f"a{number}", "type": None, "default": None} for number in range(100)]},
            {"parameters": [{"name": "a", "type": None, "default": "x" * 16382}]},
            {"statement": "x" * 1024 * 1024},
        ],
        ids=lambda largest: next(iter(largest)),
    )
    async def test_values_at_their_limits_are_saved_and_found(self, ana: Caller, largest: dict[str, Any]):
        saved = await save(ana, **largest)
        assert largest.items() <= (await read(ana, saved["uuid"])).items()
        assert [one["uuid"] for one in await listed(ana, folder=saved["folder"])] == [saved["uuid"]]
        for tag in saved["tags"]:
            assert [one["uuid"] for one in await listed(ana, tag=tag)] == [saved["uuid"]]

    @pytest.mark.documents(6)
    async def test_other_refusals_have_their_codes(self, ana: Caller):
        assert await ana.refused("documents/save") == (400, -1, "missing_parameter")
        both = {"document": "{}", "notebook": "{}"}
        assert await ana.refused("documents/save", **both) == (400, -1, "conflicting_parameters")
        unknown = json.dumps({"connector": "nowhere"})
        assert await ana.refused("documents/save", document=unknown) == (404, -1, "dialect_not_found")
        long = json.dumps({"statement": "x" * (1024 * 1024 + 1)})
        assert await ana.refused("documents/save", document=long) == (413, -1, "payload_too_large")
        assert await ana.refused("documents/save", operationId=str(uuid4())) == (404, -1, "operation_not_found")

    async def test_unknown_type_of_a_parameter_is_refused_with_the_known_ones(self, ana: Caller):
        document = {"parameters": [{"name": "n", "type": "int"}]}
        response = await ana.post_json("documents/save", document=document)
        assert verdict(response) == (400, -1, "invalid_parameter")
        assert response.json()["message"].startswith("document.parameters.0.type must be 'boolean', 'bigint', ")

    @pytest.mark.documents(16)
    async def test_history_entry_becomes_a_document(self, ana: Caller, bob: Caller):
        ran = await ana.run("mysql", "rows 3", database="shop")
        saved = await ana.post_json(
            "documents/save", operationId=ran["history_uuid"], document={"name": "Three", "tags": ["kept"]}
        )
        document = saved.json()["document"]
        shown = {key: document[key] for key in ("name", "statement", "connector", "database", "tags")}
        expected = {"name": "Three", "statement": "rows 3", "connector": "mysql", "database": "shop", "tags": ["kept"]}
        assert shown == expected
        alone = await ana.post_ok("documents/save", operationId=ran["history_uuid"])
        assert alone["document"]["statement"] == "rows 3"
        assert await bob.refused("documents/save", operationId=ran["history_uuid"]) == (404, -1, "operation_not_found")

    @pytest.mark.documents(23)
    async def test_audit_events_name_the_document_and_not_its_text(self, ana: Caller, audited: list[Event]):
        saved = await save(ana, **CONTENT)
        await ana.post_json("documents/save", document={"uuid": saved["uuid"], "name": "late"})
        await share(ana, saved["uuid"], {"user": "nobody-of-this-name", "permission": "view"})
        await ana.post_ok("documents/delete", uuid=saved["uuid"])
        events = [one for one in audited if str(one["event"]).startswith("document.")]
        shown = [(one["event"], one["subject"], one["outcome"]) for one in events]
        assert shown == [
            ("document.save", saved["uuid"], "ok"),
            ("document.save", saved["uuid"], "version_conflict"),
            ("document.share", saved["uuid"], "unknown_user"),
            ("document.delete", saved["uuid"], "ok"),
        ]
        assert about(audited, "document.save")
        assert "orders" not in str(events)

    @pytest.mark.documents(2)
    async def test_change_of_a_default_from_one_json_type_to_another_is_saved(self, ana: Caller):
        uuid = (await save(ana, parameters=[{"name": "n", "default": 1}]))["uuid"]
        for version, default in enumerate([1.0, True, "1", [1], [1.0], [True]], 1):
            changed = await save(ana, uuid=uuid, version=version, parameters=[{"name": "n", "default": default}])
            shown = changed["parameters"][0]["default"]
            assert (changed["version"], json.dumps(shown)) == (version + 1, json.dumps(default))

    @pytest.mark.documents(1)
    @pytest.mark.parametrize(
        "default", [1e16, 1e19, 5e-324, -0.0, 2**63 - 1, -(2**63), "1e400", {"type": "decimal", "value": "1" * 38}]
    )
    async def test_defaults_keep_their_values(self, ana: Caller, default: Any):
        uuid = (await save(ana, parameters=[{"name": "n", "default": default}]))["uuid"]
        shown = (await read(ana, uuid))["parameters"][0]["default"]
        assert json.dumps(shown) == json.dumps(default)

    @pytest.mark.documents(6)
    @pytest.mark.parametrize("default", [10**30, [10**30], {"type": "double", "value": 10**30}])
    @pytest.mark.parametrize("kind", [None, "double", "array"])
    async def test_long_integers_are_refused(self, ana: Caller, default: Any, kind: str | None):
        parameter = {"name": "n", "type": kind, "default": default}
        response = await ana.post_json("documents/save", document={"parameters": [parameter]})
        assert response.status_code == 400
        assert await listed(ana) == []

    @pytest.mark.documents(23)
    async def test_each_grant_has_an_audit_event_that_cannot_be_cut(
        self, ana: Caller, bob: Caller, audited: list[Event]
    ):
        uuid = (await save(ana, name="x"))["uuid"]
        grants = [
            {"user": " " * 40 + bob.username.upper(), "permission": "view"},
            {"user": bob.username, "permission": "none"},
        ]
        assert (await share(ana, uuid, *grants)).status_code == 200
        facts = [(one["subject_user"], one["permission"], one["outcome"]) for one in about(audited, "document.share")]
        assert facts == [(bob.username, "view", "ok"), (bob.username, "none", "ok")]
        hidden = await share(ana, uuid, {"user": " " * 40_000 + bob.username, "permission": "edit"})
        assert verdict(hidden) == (404, -1, "unknown_user")
        assert (await read(ana, uuid))["grants"] == []

    @pytest.mark.documents(23)
    async def test_early_refusals_are_audited(self, ana: Caller, audited: list[Event]):
        uuid = (await save(ana, name="x"))["uuid"]
        await ana.post("documents/save", operationId=str(uuid4()))
        await ana.post("documents/restore_version", uuid=uuid, restore=7, version=1)
        outcomes = [one["outcome"] for one in about(audited, "document.save")]
        assert outcomes == ["ok", "operation_not_found", "document_version_not_found"]


class TestLists:
    @pytest.mark.documents(7)
    async def test_pages_have_every_document_once(self, ana: Caller):
        made = [(await save(ana, name=f"document {number}"))["uuid"] for number in range(7)]
        for limit in (1, 3, 7, 100):
            assert [one["uuid"] for one in await listed(ana, limit=limit)] == made[::-1], limit
        page = (await ana.get("documents", limit=7)).json()
        assert page["next_after"] is None

    @pytest.mark.documents(7)
    async def test_filters_select(self, ana: Caller, bob: Caller):
        sales = await save(ana, **CONTENT, folder="/reports")
        stock = await save(ana, name="Stock", statement="rows 1", connector="mysql", folder="/reports/daily")
        theirs = await save(bob, name="Theirs", statement="rows 2")
        await share(bob, theirs["uuid"], {"user": ana.username, "permission": "view"})

        async def found(**query: Any) -> list[str]:
            return [one["name"] for one in await listed(ana, **query)]

        assert await found() == ["Theirs", "Stock", "Daily sales"]
        assert await found(folder="/reports") == ["Daily sales"]
        assert await found(folder="reports/daily/") == ["Stock"]
        assert await found(tag="daily") == ["Daily sales"]
        assert await found(text="SHOP.orders") == ["Daily sales"]
        assert await found(text="orders OF a") == ["Daily sales"]
        assert await found(text="stock") == ["Stock"]
        assert await found(text="%") == []
        assert await found(owner=bob.username) == ["Theirs"]
        assert await found(owner="not a name") == []
        assert await found(type="query-hive") == ["Daily sales"]
        assert await found(type="mysql") == ["Stock"]
        assert await found(type="notebook") == ["Theirs"]
        assert await found(owner=ana.username, text="rows", type="mysql") == ["Stock"]
        assert {sales["folder"], stock["folder"]} == {"/reports", "/reports/daily"}

    async def test_invalid_cursor_is_refused(self, ana: Caller):
        for after in ("x", "1", "1-2-3", "1-" + "9" * 30, "-1-2"):
            assert verdict(await ana.get("documents", after=after)) == (400, -1, "invalid_parameter")

    @pytest.mark.documents(10)
    async def test_only_administrators_list_the_documents_of_all(self, api: Api, ana: Caller):
        saved = await save(ana, name="Mine")
        root = await api.user("root", admin=True)
        assert verdict(await ana.get("documents", all="true")) == (403, -1, "admin_required")
        assert await listed(root) == []
        [found] = await listed(root, all="true", owner=ana.username)
        assert (found["uuid"], found["permission"]) == (saved["uuid"], "manage")


class TestTrash:
    @pytest.mark.documents(8)
    async def test_trash_hides_a_document_until_it_is_restored(self, ana: Caller, bob: Caller):
        saved = await save(ana, **CONTENT)
        uuid = saved["uuid"]
        await save(ana, uuid=uuid, version=1, name="Second")
        await share(ana, uuid, {"user": bob.username, "permission": "edit"})
        assert (await ana.post_ok("documents/delete", uuid=json.dumps(uuid)))["status"] == 0
        assert verdict(await bob.get(f"documents/{uuid}")) == (404, -1, "document_not_found")
        assert (await listed(ana), await listed(bob)) == ([], [])
        assert [one["uuid"] for one in await listed(ana, trash="true")] == [uuid]
        assert await listed(bob, trash="true") == []
        assert (await read(ana, uuid))["is_trashed"]
        for call, fields in (
            ("save", {"document": {"uuid": uuid, "version": 2, "name": "x"}}),
            ("move", {"uuid": uuid, "folder": "/x"}),
            ("share", {"uuid": uuid, "grants": []}),
            ("restore_version", {"uuid": uuid, "restore": 1, "version": 2}),
        ):
            assert verdict(await ana.post_json(f"documents/{call}", **fields)) == (409, -1, "document_in_trash"), call
        await ana.post_ok("documents/delete", uuid=uuid)
        restored = await ana.post_ok("documents/restore", uuid=uuid)
        assert (restored["document"]["is_trashed"], restored["document"]["version"]) == (False, 2)
        assert len(await versions_of(bob, uuid)) == 2

    @pytest.mark.documents(8)
    async def test_deleted_for_ever(self, api: Api, ana: Caller):
        saved = await save(ana, **CONTENT)
        uuid = saved["uuid"]
        await save(ana, uuid=uuid, version=1, name="Second")
        await ana.post_ok("documents/delete", uuid=uuid, skip_trash="true")
        for path in ("", "/versions", "/versions/1"):
            assert verdict(await ana.get(f"documents/{uuid}{path}")) == (404, -1, "document_not_found")
        assert await ana.refused("documents/restore", uuid=uuid) == (404, -1, "document_not_found")
        left = "select count(*) from document_versions where document_id = $1"
        assert await api.database.value(left, saved["id"]) == 0

    @pytest.mark.documents(8)
    async def test_clean_up_deletes_old_trash(self, small_api: ApiOpener):
        async with small_api() as api:
            ana = await api.user("ana")
            old, new, kept = [await save(ana, name=name) for name in ("old", "new", "kept")]
            for one in (old, new):
                await ana.post_ok("documents/delete", uuid=one["uuid"])
            age = "update documents set trashed_at = trashed_at - interval '31 days' where id = $1"
            await api.database.execute(age, old["id"])
            retention = api.services.statements.retention
            assert (await retention.clean_up(dry_run=True))["trashed documents"] == 1
            assert [one["name"] for one in await listed(ana, trash="true")] == ["new", "old"]
            assert (await retention.clean_up())["trashed documents"] == 1
            assert [one["name"] for one in await listed(ana, trash="true")] == ["new"]
            assert [one["uuid"] for one in await listed(ana)] == [kept["uuid"]]

    @pytest.mark.documents(9)
    async def test_move_changes_only_the_folder(self, ana: Caller):
        saved = await save(ana, **CONTENT)
        moved = (await ana.post_ok("documents/move", uuid=saved["uuid"], folder="/a/b"))["document"]
        assert moved == {**saved, "folder": "/a/b"}
        assert await ana.refused("documents/move", uuid=saved["uuid"]) == (400, -1, "missing_parameter")


class TestVersions:
    @pytest.mark.documents(14)
    async def test_former_versions_are_read_and_restored(self, ana: Caller):
        saved = await save(ana, **CONTENT)
        uuid = saved["uuid"]
        await save(ana, uuid=uuid, version=1, name="Second", statement="rows 2", parameters=[], tags=[])
        former = (await ana.get(f"documents/{uuid}/versions/1")).json()["version"]
        assert {**CONTENT, "version": 1, "modified_by": ana.username}.items() <= former.items()
        current = (await ana.get(f"documents/{uuid}/versions/2")).json()["version"]
        assert (current["name"], current["statement"], current["parameters"]) == ("Second", "rows 2", [])
        stale = await ana.post_json("documents/restore_version", uuid=uuid, restore=1, version=1)
        assert verdict(stale) == (409, -1, "version_conflict")
        restored = await ana.post_ok("documents/restore_version", uuid=uuid, restore=1, version=2)
        assert {**CONTENT, "version": 3}.items() <= restored["document"].items()
        assert history(await versions_of(ana, uuid)) == [(3, "Daily sales"), (2, "Second"), (1, "Daily sales")]

    @pytest.mark.documents(14)
    async def test_list_of_versions_names_who_saved_them_and_when(self, ana: Caller, bob: Caller):
        first = await save(ana, **CONTENT)
        uuid = first["uuid"]
        await share(ana, uuid, {"user": bob.username, "permission": "edit"})
        second = await save(bob, uuid=uuid, version=1, name="Second")
        await ana.post_ok("documents/move", uuid=uuid, folder="/elsewhere")
        expected = [
            {"version": one["version"], "name": one["name"], "modified": one["modified"], "modified_by": user.username}
            for one, user in ((second, bob), (first, ana))
        ]
        assert await versions_of(ana, uuid) == await versions_of(bob, uuid) == expected

    @pytest.mark.documents(14)
    async def test_unknown_versions_do_not_exist(self, ana: Caller):
        uuid = (await save(ana, **CONTENT))["uuid"]
        for version in ("0", "2", "-1", "one", "99999999999", "1.0"):
            response = await ana.get(f"documents/{uuid}/versions/{version}")
            assert verdict(response) == (404, -1, "document_version_not_found"), version
        refused = await ana.refused("documents/restore_version", uuid=uuid, restore=7, version=1)
        assert refused == (404, -1, "document_version_not_found")

    @pytest.mark.documents(14)
    async def test_oldest_versions_are_deleted(self, small_api: ApiOpener):
        async with small_api(documents={"versions_kept": 2}) as api:
            ana = await api.user("ana")
            uuid = (await save(ana, name="1"))["uuid"]
            for version in range(1, 5):
                await save(ana, uuid=uuid, version=version, name=str(version + 1))
            assert history(await versions_of(ana, uuid)) == [(5, "5"), (4, "4"), (3, "3")]
            gone = await ana.post_json("documents/restore_version", uuid=uuid, restore=2, version=5)
            assert verdict(gone) == (404, -1, "document_version_not_found")

    @pytest.mark.documents(17)
    async def test_all_versions_count_against_the_quota(self, small_api: ApiOpener):
        async with small_api(documents={"max_bytes_per_user": 1000, "versions_kept": 3}) as api:
            ana, bob = await api.user("ana"), await api.user("bob")
            uuid = (await save(ana, name="long", statement="a" * 400))["uuid"]
            await share(ana, uuid, {"user": bob.username, "permission": "edit"})
            await save(bob, uuid=uuid, version=1, statement="b" * 400)
            document = {"uuid": uuid, "version": 2, "statement": "c" * 400}
            for user in (ana, bob):
                assert verdict(await user.post_json("documents/save", document=document)) == (429, -1, "quota_exceeded")
            other = await ana.post_json("documents/save", document={"statement": "d" * 400})
            assert verdict(other) == (429, -1, "quota_exceeded")
            assert (await read(ana, uuid))["version"] == 2
            await ana.post_ok("documents/delete", uuid=uuid, skip_trash="true")
            await save(ana, statement="d" * 400)

    @pytest.mark.documents(17)
    async def test_concurrent_saves_respect_the_number_of_documents(self, small_api: ApiOpener):
        async with small_api(documents={"max_per_user": 3}) as api:
            ana = await api.user("ana")
            answers = await asyncio.gather(*(ana.post_json("documents/save", document={"name": "x"}) for _ in range(8)))
            assert sorted(one.status_code for one in answers) == [200] * 3 + [429] * 5
            assert {one.json()["code"] for one in answers if one.status_code == 429} == {"too_many_documents"}
            assert len(await listed(ana)) == 3


class TestNotebooks:
    @pytest.mark.documents(15)
    @pytest.mark.parametrize(("kind", "expected"), [("", ("My Notebook", None)), ("hive", ("Untitled", "hive2"))])
    async def test_new_notebook_is_saved_as_it_is(self, ana: Caller, kind: str, expected: tuple[str, str | None]):
        made = await ana.post_ok("editor/create_notebook", type=kind)
        saved = await ana.post_ok(
            "/notebook/api/notebook/save", notebook=json.dumps(made["notebook"]), editorMode="true"
        )
        document = saved["document"]
        assert (document["name"], document["connector"]) == expected
        assert (saved["uuid"], saved["save_as"]) == (made["notebook"]["uuid"], True)
        assert document["uuid"] == saved["uuid"]

    @pytest.mark.documents(15)
    async def test_notebook_of_a_document_can_be_changed_and_saved(self, ana: Caller):
        saved = await save(ana, **CONTENT)
        notebook = (await ana.get(f"documents/{saved['uuid']}")).json()["data"]
        again = await ana.post_ok("documents/save", notebook=json.dumps(notebook))
        assert (again["document"], again["save_as"]) == (saved, False)
        notebook["snippets"][0]["statement_raw"] = "rows 5"
        changed = (await ana.post_ok("documents/save", notebook=json.dumps(notebook)))["document"]
        assert (changed["statement"], changed["version"], changed["connector"]) == ("rows 5", 2, "hive2")
        stale = await ana.post("documents/save", notebook=json.dumps({**notebook, "name": "late"}))
        assert verdict(stale) == (409, -1, "version_conflict")
        del notebook["version"]
        replaced = await ana.post_ok("documents/save", notebook=json.dumps({**notebook, "name": "of Hue"}))
        assert (replaced["document"]["name"], replaced["document"]["version"]) == ("of Hue", 3)
        assert (await ana.get(f"documents/{saved['uuid']}/versions/2")).json()["version"]["name"] == "Daily sales"

    @pytest.mark.documents(15)
    async def test_notebook_with_several_statements_is_refused(self, ana: Caller):
        snippets = [
            {"type": "mysql", "statement": "rows 1"},
            {"type": "mysql"},
            {"type": "mysql", "statement": "rows 2"},
        ]
        refused = await ana.refused("documents/save", notebook=json.dumps({"name": "x", "snippets": snippets}))
        assert refused == (400, -1, "invalid_parameter")
        one = await ana.post_ok("documents/save", notebook=json.dumps({"name": "x", "snippets": snippets[:2]}))
        assert one["document"]["statement"] == "rows 1"
