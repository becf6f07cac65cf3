"""Tests of imports from files in stores, which are the same for every store. `EverywhereContract` inherits them."""

from pathlib import Path
from random import Random

import pytest
from tests.api.importer.asking import guess, header, names, preview, types
from tests.api.importer.conftest import refusal
from tests.fakes.workbook_files import column_xml, workbook_parts, write_package

MIB = 1024 * 1024
REMOTE = {"import_type": "remote"}


class PreviewsEverywhere:
    """Tests of previews. Subclasses provide the fixture `folder`."""

    @pytest.mark.importer(16, 45)
    async def test_remote_text_file_is_previewed(self, folder):
        await folder.put("sales é.csv", b"id,price\n" + b"12345678,1.50\n" * 200_000)
        user, path = folder.world.user, folder.at("sales é.csv")
        guessed = (await guess(user, path, **REMOTE)).json()
        assert (guessed["type"], guessed["field_separator"], guessed["confidence"]) == ("csv", ",", 1.0)
        assert (await header(user, path, **REMOTE)).json() == {"has_header": True}
        body = (await preview(user, path, **REMOTE)).json()
        assert (names(body), types(body)) == (["id", "price"], ["BIGINT", "DOUBLE"])
        assert body["preview_data"] == [["12345678", "1.50"]] * 50
        assert refusal(await preview(user, folder.at("nothing"), **REMOTE)) == (400, "file_not_found")
        assert refusal(await preview(user, folder.path, **REMOTE)) == (400, "invalid_parameter")

    @pytest.mark.importer(45)
    async def test_remote_workbook_is_previewed(self, folder, tmp_path: Path):
        sheets = {"one": column_xml(["<c><v>1</v></c>", "<c><v>2</v></c>"])}
        parts = {**workbook_parts(sheets), "xl/media/image1.png": Random(1).randbytes(2 * MIB)}
        await folder.put("book.xlsx", write_package(tmp_path / "book.xlsx", parts).read_bytes())
        user, path = folder.world.user, folder.at("book.xlsx")
        assert (await guess(user, path, **REMOTE)).json() == {"type": "excel", "sheet_names": ["one"]}
        query = {**REMOTE, "sheet_name": "one", "has_header": "false"}
        assert (await preview(user, path, "excel", **query)).json()["preview_data"] == [["1"], ["2"]]
