"""Detection of encodings (Contract importer 9.2), on long and short texts in many languages."""

from contextlib import suppress
from pathlib import Path

import pytest
from tests.timing import TRIES, processor_s

from queryserver.errors.files import UnsupportedFormat
from queryserver.formats.delimited.encodings import CERTAIN_CONFIDENCE, DetectedEncoding, decoded, detect_encoding
from queryserver.formats.table_files import SAMPLE_BYTES

FIELD = Path(__file__).parents[3] / "field" / "import"

CUSTOMERS = {
    file.stem: file.read_text(encoding="utf-8") for file in sorted((Path(__file__).parent / "customers").glob("*.csv"))
}
"""Tables of customers, by language."""

NAMES = {
    ("ja", "cp932"): {"shift_jis", "cp932"}, ("ja", "euc_jp"): {"euc-jp"}, ("zh_cn", "gbk"): {"gbk", "gb18030"},
    ("zh_cn", "gb18030"): {"gbk", "gb18030"}, ("zh_tw", "big5"): {"big5"}, ("ko", "euc_kr"): {"euc-kr", "cp949"},
    ("ru", "cp1251"): {"windows-1251"}, ("ru", "koi8_r"): {"koi8-r", "koi8-u"}, ("uk", "cp1251"): {"windows-1251"},
    ("uk", "koi8_u"): {"koi8-u"}, ("bg", "cp1251"): {"windows-1251"}, ("ru", "cp866"): {"cp866"},
    ("pl", "cp1250"): {"windows-1250"}, ("cs", "cp1250"): {"windows-1250"}, ("pl", "iso8859_2"): {"iso-8859-2"},
    ("hu", "cp1250"): {"windows-1250", "iso-8859-2"}, ("el", "cp1253"): {"windows-1253"},
    ("tr", "cp1254"): {"windows-1254"},
    ("he", "cp1255"): {"windows-1255"}, ("ar", "cp1256"): {"windows-1256"}, ("fr", "latin_1"): {"iso-8859-1"},
    ("de", "cp1252"): {"iso-8859-1", "windows-1252"}, ("es", "cp1252"): {"iso-8859-1", "windows-1252"},
}  # fmt: skip


def detected(sample: bytes) -> DetectedEncoding:
    return detect_encoding(sample, is_whole=True)


def text_of(sample: bytes) -> str:
    return decoded(sample, detected(sample).name, is_whole=True)


@pytest.mark.importer(65)
@pytest.mark.parametrize(("case", "names"), NAMES.items())
def test_table_in_a_language_is_read_in_its_encoding(case: tuple[str, str], names: set[str]) -> None:
    language, codec = case
    sample = CUSTOMERS[language].encode(codec)
    assert text_of(sample) == CUSTOMERS[language]
    assert detected(sample).name in names
    assert detected(sample).confidence >= CERTAIN_CONFIDENCE


@pytest.mark.importer(65)
def test_english_headers_and_numbers_do_not_hide_the_decisive_cells() -> None:
    wrong: list[DetectedEncoding] = []
    for language, codec in NAMES:
        products = [line.split(",")[2] for line in CUSTOMERS[language].splitlines()[1:]]
        cells = [products[row % len(products)] if row % 5 == 0 else "item" for row in range(28)]
        rows = [f"{row},2024-01-{row:02},{row * 1.5},{cell}" for row, cell in enumerate(cells, 1)]
        text = "\r\n".join(["id,date,amount,product", *rows, ""])
        if text_of(text.encode(codec)) != text:
            wrong.append(detected(text.encode(codec)))
    assert len(wrong) <= 2
    assert all(found.confidence < CERTAIN_CONFIDENCE for found in wrong)


@pytest.mark.importer(65)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shift_jis_refused.csv", "名前,年齢\n高橋,22\n渡辺,26\n加藤,31\n"),
        ("cp932_excel_japan.csv", "氏名,住所,備考\n髙橋,東京都千代田区①番,㈱テスト\n山﨑,大阪府,ｶﾅ\n"),
        ("cp1251_silent_mojibake.csv", "имя,город\nИван,Москва\n"),
    ],
)
def test_field_files_are_decoded_correctly(name: str, text: str) -> None:
    content = (FIELD / name).read_bytes()
    assert text_of(content) == text
    assert detected(content).confidence >= CERTAIN_CONFIDENCE


@pytest.mark.importer(65)
@pytest.mark.parametrize(
    ("codec", "text"),
    [
        ("cp1254", "ad,şehir\nAyşe,İstanbul\nÇağlar,Muğla\n"),
        ("cp1252", "nafn,borg\nÞórður,Reykjavík\nGuðrún,Ísafjörður\n"),
        ("cp1250", "imię,miasto\nMichał,Łódź\nŻaneta,Gdańsk\n"),
        ("koi8_r", "id,name\n1,Ольга\n2,John\n"),
        ("gbk", "姓名,城市\n张三,北京\n"),
        ("big5", "id,name\n1,陳美玲\n2,John\n"),
        ("euc_kr", "이름,도시\n김철수,서울\n"),
        ("euc_jp", "名前,年齢\n高橋,22\n渡辺,26\n"),
        ("euc_jp", "氏名,都市\n山田,東京\n"),
        ("cp932", "商品,価格\nケーキ,12\n"),
    ],
)
def test_few_words_are_sufficient_to_detect_the_encoding(codec: str, text: str) -> None:
    assert text_of(text.encode(codec)) == text


@pytest.mark.importer(65)
@pytest.mark.parametrize(
    "text", ["10 °C,b\n5 £,2\n", "it’s,b\n“x”,2\n", "garçon,b\n10 °C,2\nÅngström,3\n", "Elève à,b\ncafé,2\n"]
)
def test_encoding_that_mixes_scripts_within_words_is_rejected(text: str) -> None:
    sample = text.encode("cp1252")
    assert text_of(sample) == text or detected(sample).confidence < CERTAIN_CONFIDENCE
    assert detected(sample).name not in {"big5", "big5-hkscs", "windows-1255", "shift_jis"}


@pytest.mark.importer(65)
@pytest.mark.parametrize("text", ["é,1\n", "a,ö\n", "naïve,b\n1,2\n"])
def test_single_letter_is_not_evidence(text: str) -> None:
    found = detected(text.encode("latin_1"))
    assert found.name == "iso-8859-1"
    assert found.confidence < CERTAIN_CONFIDENCE


@pytest.mark.importer(65)
@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "utf-8-sig", "utf-16"])
def test_encoding_proven_by_its_bytes_is_certain(encoding: str) -> None:
    text = "a,b\n1,2\n" if encoding == "ascii" else "a,é\n1,日本\n"
    assert detected(text.encode(encoding)).confidence == 1


@pytest.mark.importer(65)
def test_few_invalid_characters_keep_utf_8() -> None:
    sample = "Straße,日本\n".encode() * 20 + b"caf\xe9\n"
    assert detected(sample).name == "utf-8"
    assert detected("é\n".encode() + b"\xe9\xe8\n").name != "utf-8"


@pytest.mark.importer(65)
def test_character_cut_by_the_end_of_the_sample_is_ignored() -> None:
    sample = CUSTOMERS["ja"].encode("cp932")
    assert detect_encoding(sample[: sample.index("ジュース".encode("cp932")) + 1], is_whole=False).name == "shift_jis"


@pytest.mark.importer(66)
@pytest.mark.parametrize("text", ["a,b\r\n1,2\r\n\x1a", "id\n1\n\x1a\x1a\x1a"])
def test_trailing_1a_does_not_make_a_file_binary(text: str) -> None:
    assert detected(text.encode()).name == "utf-8"


@pytest.mark.importer(38)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "utf-8"])
def test_text_decodes_equally_from_every_encoding(encoding):
    text = "name,é\n" * 10
    sample = text.encode(encoding)
    assert decoded(sample, detect_encoding(sample, is_whole=True).name, is_whole=True) == text


def test_cut_character_is_ignored_in_a_sample_but_not_in_a_whole_file():
    sample = "a,é".encode()[:-1]
    assert detect_encoding(sample, is_whole=False).name == "utf-8"
    assert decoded(sample, "utf-8", is_whole=False) == "a,"
    assert detect_encoding(sample, is_whole=True).name == "iso-8859-1"


@pytest.mark.parametrize(
    ("sample", "encoding"),
    [
        (b"a\x80", "windows-1252"),
        (b"caf\xe9\xa0: 5\n", "iso-8859-1"),
        ("żółć,1\n".encode("utf-16-le") + "abcdefgh,1\n".encode("utf-16-le"), "utf-16-le"),
    ],
)
def test_other_encodings_are_detected_by_their_bytes(sample, encoding):
    assert detect_encoding(sample, is_whole=True).name == encoding


@pytest.mark.parametrize("sample",
    [b"\xff\xfe\0\0a\0\0\0", b"\0\0\xfe\xff\0\0\0a", b"a\0b\0", b"abc\0defgh", b"\0" * 64, b"a" * 98 + b"\x07\x08",
    "a\x85\x86".encode()])  # fmt: skip
def test_binary_data_is_unsupported(sample):
    with pytest.raises(UnsupportedFormat):
        detect_encoding(sample, is_whole=True)


def test_one_percent_control_characters_is_tolerated():
    assert detect_encoding(b"a" * 99 + b"\x07", is_whole=True).name == "utf-8"
    assert detect_encoding(b"a\x01b\x1fc\x1cd\x0c\x03" * 9, is_whole=True).name == "utf-8"


@pytest.mark.importer(50)
@pytest.mark.parametrize(
    "sample",
    [b",".join(bytes((0xA1 + at % 90, 0xA1 + at // 90 % 90, 0xA1 + at // 8100)) for at in range(65_536)),
    b"\xe9" * SAMPLE_BYTES,
    b"\x81\x40" * (SAMPLE_BYTES // 2),
    "日本,".encode() * 37_000 + b"\xff"],
)  # fmt: skip
def test_largest_sample_is_detected_within_two_seconds(sample: bytes) -> None:
    def find() -> None:
        with suppress(UnsupportedFormat):
            detect_encoding(sample[:SAMPLE_BYTES], is_whole=False)

    assert any(processor_s(find) < 2 for _ in range(TRIES))
