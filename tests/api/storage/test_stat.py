"""stat: attributes of one entry (Contract storage 5.4)."""

import pytest
from tests.api.storage.conftest import Files


@pytest.mark.storage(1)
async def test_both_forms_tell_the_attributes_of_a_file(files: Files) -> None:
    ana, place = await files.api.user("ana"), files.place()
    (files.root / place / "a.csv").write_bytes(b"id,name\n")
    path_form = await ana.get(f"storage/stat=file:///{place}/a.csv")
    query_form = await ana.get("storage/stat", path=f"file:///{place}/a.csv")
    body = path_form.json()
    assert query_form.json() == body
    assert (body["status"], body["name"], body["size"], body["type"]) == (0, "a.csv", 8, "file")
    assert (body["path"], body["rwx"]) == (f"file:///{place}/a.csv", "-rw-r--r--")


async def test_a_root_is_a_directory_of_size_0(files: Files) -> None:
    body = (await (await files.api.user("ana")).get("storage/stat=file:///")).json()
    assert (body["type"], body["size"], body["path"]) == ("dir", 0, "file:///")


async def test_a_missing_entry_is_404(files: Files) -> None:
    ana = await files.api.user("ana")
    for answer in (await ana.get("storage/stat=/shared/none"), await ana.get("storage/stat", path="/shared/none")):
        assert (answer.status_code, answer.json()["code"]) == (404, "path_not_found")


async def test_stat_needs_a_path(files: Files) -> None:
    ana = await files.api.user("ana")
    for answer in (
        await ana.get("storage/stat="),
        await ana.get("storage/stat"),
        await ana.get("storage/stat", path=""),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")
