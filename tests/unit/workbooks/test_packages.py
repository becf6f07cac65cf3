"""Recognition of workbook formats, and limits on their containers (Contract importer 14.4)."""

import io
import struct
import zipfile

import pytest
from tests.fakes.workbook_files import column_xml, compound_file, workbook_parts, write_ods, write_package
from tests.refusals import raises_code

from queryserver.errors.base import InvalidRequest
from queryserver.errors.files import FileCorrupt, UnsupportedFormat
from queryserver.workbooks.worker import WorkbookKind, recognize_workbook


def zipped(*names: str) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package:
        for name in names:
            package.writestr(name, b"x")
    return file


@pytest.mark.importer(13)
@pytest.mark.parametrize(
    ("name", "kind"), [("xl/workbook.xml", WorkbookKind.XLSX), ("xl/workbook.bin", WorkbookKind.XLSB)]
)
def test_zip_file_with_a_workbook_part_is_a_workbook(name, kind):
    assert recognize_workbook(zipped("[Content_Types].xml", name)) is kind


def test_zip_file_with_the_ods_mime_type_is_an_ods(tmp_path):
    with write_ods(tmp_path / "a.ods", "").open("rb") as file:
        assert recognize_workbook(file) is WorkbookKind.ODS


@pytest.mark.importer(15)
def test_word_file_is_not_a_workbook():
    with pytest.raises(UnsupportedFormat):
        recognize_workbook(zipped("[Content_Types].xml", "word/document.xml"))
    with pytest.raises(UnsupportedFormat):
        recognize_workbook(io.BytesIO(compound_file(["WordDocument", "1Table"])))


@pytest.mark.parametrize("name", ["Workbook", "Book", "WORKBOOK"])
def test_compound_file_with_a_workbook_stream_is_an_xls(name):
    assert recognize_workbook(io.BytesIO(compound_file(["other", name]))) is WorkbookKind.XLS


@pytest.mark.importer(15)
def test_compound_file_with_an_encrypted_package_is_encrypted():
    with raises_code("file_encrypted"):
        recognize_workbook(io.BytesIO(compound_file(["EncryptionInfo", "EncryptedPackage"])))


@pytest.mark.importer(15)
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_truncated_zip_file_is_corrupt(tmp_path, kept):
    path = write_package(tmp_path / "a.xlsx", workbook_parts({"A": column_xml(["<c><v>1</v></c>"] * 1000)}))
    whole = path.read_bytes()
    with pytest.raises(FileCorrupt):
        recognize_workbook(io.BytesIO(whole[: int(len(whole) * kept)]))


@pytest.mark.parametrize("table", [[0xFFFFFFFD, 1], [0xFFFFFFFD, 2, 1], [0xFFFFFFFD, 5_000_000], [0xFFFFFFFD, 100]])
def test_compound_file_with_a_broken_chain_is_corrupt(table):
    with pytest.raises(FileCorrupt):
        recognize_workbook(io.BytesIO(compound_file(["Workbook", "a", "b", "c", "d"], table=table)))


def test_compound_file_with_a_cyclic_sector_table_is_corrupt():
    whole = bytearray(compound_file(["Workbook"]))
    # The sector table continues in sector 0, and the last entry of sector 0 refers to sector 0 again.
    struct.pack_into("<L", whole, 68, 0)
    struct.pack_into("<L", whole, 512 + 508, 0)
    with pytest.raises(FileCorrupt):
        recognize_workbook(io.BytesIO(bytes(whole)))


def test_directory_with_cyclic_entries_is_read_once():
    whole = bytearray(compound_file(["Workbook", "a"]))
    # The right sibling of the second directory entry is the first entry.
    struct.pack_into("<L", whole, 1024 + 2 * 128 + 72, 1)
    assert recognize_workbook(io.BytesIO(bytes(whole))) is WorkbookKind.XLS


@pytest.mark.parametrize("size", [8, 100, 511, 600, 1100])
def test_truncated_compound_file_is_corrupt(size):
    with pytest.raises(FileCorrupt):
        recognize_workbook(io.BytesIO(compound_file(["Workbook"])[:size]))


@pytest.mark.importer(17)
def test_text_is_not_a_workbook():
    assert recognize_workbook(io.BytesIO(b"a,b\n1,2\n")) is None
    assert recognize_workbook(io.BytesIO(b"")) is None


@pytest.mark.importer(49)
def test_zip_file_of_twenty_thousand_entries_is_too_complex():
    file = zipped("xl/workbook.xml", *(f"part{number}" for number in range(20_000)))
    with raises_code("file_too_complex"):
        recognize_workbook(file)


def test_zip_entries_are_counted_rather_than_declared():
    whole = bytearray(zipped("xl/workbook.xml", *(f"part{number}" for number in range(10_001))).getvalue())
    struct.pack_into("<2H", whole, len(whole) - 22 + 8, 1, 1)
    with raises_code("file_too_complex"):
        recognize_workbook(io.BytesIO(bytes(whole)))


def test_oversized_zip_directory_is_too_complex_before_it_is_read():
    whole = bytearray(zipped("xl/workbook.xml").getvalue())
    whole[0:0] = b"PK\x03\x04" + bytes(20 * 1024 * 1024)
    struct.pack_into("<2L", whole, len(whole) - 22 + 12, 20 * 1024 * 1024, 4)
    with pytest.raises(InvalidRequest, check=lambda error: error.code in {"file_too_complex", "file_corrupt"}):
        recognize_workbook(io.BytesIO(bytes(whole)))


@pytest.mark.importer(49)
def test_highly_compressed_part_is_too_complex():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("xl/workbook.xml", bytes(3 * 1024 * 1024))
    with raises_code("file_too_complex"):
        recognize_workbook(file)


def test_small_part_may_be_highly_compressed():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("xl/workbook.xml", bytes(1024 * 1024))
    assert recognize_workbook(file) is WorkbookKind.XLSX


@pytest.mark.importer(49)
def test_more_than_512_mib_is_too_complex_before_unpacking():
    whole = bytearray(zipped("xl/workbook.xml", "a", "b").getvalue())
    directory = whole.index(b"PK\x01\x02")
    for _ in range(3):
        # Each part declares 200 MiB, compressed to 2 MiB, but the file contains far fewer bytes.
        struct.pack_into("<2L", whole, directory + 20, 2 * 1024**2, 200 * 1024**2)
        directory = whole.find(b"PK\x01\x02", directory + 4)
    with raises_code("file_too_complex", match="512 MiB"):
        recognize_workbook(io.BytesIO(bytes(whole)))


def test_zip64_package_is_recognized():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package, package.open("xl/workbook.xml", "w", force_zip64=True) as part:
        part.write(b"x")
    whole = file.getvalue()
    end = whole.index(b"PK\x05\x06")
    directory = whole.index(b"PK\x01\x02")
    wide = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, end - directory, directory)
    place = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    narrow = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    assert recognize_workbook(io.BytesIO(whole[:end] + wide + place + narrow)) is WorkbookKind.XLSX
