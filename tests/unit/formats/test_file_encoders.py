"""Files whose rows arrive one batch at a time (`FileEncoders`), compared with downloads of the same rows."""

import io
import zipfile

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queryserver.errors.base import InvalidParameter
from queryserver.formats.arrow import Column, ResultType
from queryserver.formats.download import xlsx
from queryserver.formats.download.encoder import DownloadFormat, FileForm
from queryserver.formats.download.stream import FileEncoders

COLUMNS = (Column("n", ResultType.BIGINT, "BIGINT"), Column("t", ResultType.STRING, "VARCHAR"))


def encoded(encoders: FileEncoders, *batches: pa.RecordBatch) -> bytes:
    """Return the next file with these rows."""
    encoder = encoders.encoder()
    content = encoder.start() + b"".join([encoder.rows(batch) for batch in batches]) + encoder.end()
    encoder.close()
    return content


def rows(*numbers: float | None, kind: pa.DataType | None = None) -> pa.RecordBatch:
    texts = [None if number is None else f"row {number}" for number in numbers]
    return pa.record_batch([pa.array(numbers, kind or pa.int64()), pa.array(texts, pa.string())], names=["n", "t"])


def column(content: bytes) -> pa.ChunkedArray:
    return pq.ParquetFile(io.BytesIO(content)).read().column("n")


@pytest.mark.exports(15)
class TestTypes:
    def test_first_rows_determine_the_types_of_all_files(self):
        encoders = FileEncoders(COLUMNS, FileForm(DownloadFormat.PARQUET))
        first, second = encoded(encoders, rows(1, 2), rows(3)), encoded(encoders, rows(4))
        assert [column(one).to_pylist() for one in (first, second)] == [[1, 2, 3], [4]]
        assert column(first).type == column(second).type == pa.int64()

    def test_types_that_the_file_can_hold_are_converted(self):
        encoders = FileEncoders(COLUMNS, FileForm(DownloadFormat.PARQUET))
        nothing = rows(None, kind=pa.null())
        assert column(encoded(encoders, rows(1), rows(2, kind=pa.int8()), nothing)).to_pylist() == [1, 2, None]

    @pytest.mark.parametrize("kind", [DownloadFormat.PARQUET, DownloadFormat.ARROW, DownloadFormat.FEATHER])
    def test_later_rows_of_another_type_are_an_error(self, kind: DownloadFormat):
        encoders = FileEncoders(COLUMNS, FileForm(kind))
        encoder = encoders.encoder()
        encoder.rows(rows(1, kind=pa.int32()))
        with pytest.raises(InvalidParameter, match=r"format: the column 'n' has values of the type int64 after"):
            encoder.rows(rows(2**40))
        encoder.close()

    def test_texts_take_values_of_every_type(self):
        encoders = FileEncoders(COLUMNS, FileForm(DownloadFormat.PARQUET))
        texts = pa.record_batch([pa.array(["a"]), pa.array(["b"])], names=["n", "t"])
        assert column(encoded(encoders, texts, rows(7), rows(2.5, kind=pa.float64()))).to_pylist() == ["a", "7", "2.5"]

    def test_known_types_of_all_rows_are_combined(self):
        known = [rows(1, kind=pa.int32()).schema, rows(1).schema]
        encoders = FileEncoders(COLUMNS, FileForm(DownloadFormat.PARQUET), known)
        assert column(encoded(encoders, rows(1, kind=pa.int32()), rows(2**40))).to_pylist() == [1, 2**40]

    def test_file_without_rows_has_the_declared_types(self):
        content = encoded(FileEncoders(COLUMNS, FileForm(DownloadFormat.PARQUET)))
        assert column(content).type == pa.int64()


class TestSheets:
    @staticmethod
    def cells(content: bytes) -> list[tuple[object, ...]]:
        return list(openpyxl.load_workbook(io.BytesIO(content))["result"].iter_rows(values_only=True))

    def test_sheet_has_all_rows_of_all_batches(self):
        encoders = FileEncoders(COLUMNS, FileForm(DownloadFormat.XLSX))
        assert self.cells(encoded(encoders, rows(1, 2), rows(3))) == [
            ("n", "t"), (1, "row 1"), (2, "row 2"), (3, "row 3")
        ]  # fmt: skip
        assert self.cells(encoded(encoders)) == [("n", "t")]

    def test_first_rows_determine_the_widths(self):
        content = encoded(FileEncoders(COLUMNS, FileForm(DownloadFormat.XLSX)), rows(*range(10**6, 10**6 + 3)))
        sheet = zipfile.ZipFile(io.BytesIO(content)).read("xl/worksheets/sheet1.xml").decode()
        assert '<col min="2" max="2" width="13"' in sheet
        assert "<dimension" not in sheet

    def test_row_limit_applies_to_the_rows_so_far(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(xlsx, "XLSX_MAX_ROWS", 3)
        encoder = FileEncoders(COLUMNS, FileForm(DownloadFormat.XLSX)).encoder()
        encoder.rows(rows(1, 2, 3))
        with pytest.raises(InvalidParameter, match="xlsx allows at most 3 rows; the result has more"):
            encoder.rows(rows(4))
        encoder.close()

    def test_sheet_that_may_exceed_the_size_limit_is_refused(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 20_000)
        large = FileEncoders(COLUMNS, FileForm(DownloadFormat.XLSX)).encoder()
        large.rows(rows(1))
        with pytest.raises(InvalidParameter, match="exceeds 2 GiB"):
            large.rows(rows(*range(100)))
        large.close()


def test_header_can_be_left_out():
    form = FileForm(DownloadFormat.CSV, has_header=False)
    assert encoded(FileEncoders(COLUMNS, form), rows(1)) == b"1,row 1\r\n"
