"""Names of columns (Contract importer 7.3.5)."""

import pytest

from queryserver.formats.cell_types.header import header_names, numbered_names


@pytest.mark.importer(30)
@pytest.mark.parametrize(
    ("header", "names"),
    [
        (["b", "a", "c"], ["b", "a", "c"]),
        (["id", "id", "id"], ["id", "id_2", "id_3"]),
        (["id", "ID", "Id"], ["id", "ID_2", "Id_3"]),
        (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
        (["a_2", "a", "a"], ["a_2", "a", "a_3"]),
        (["a", "a", "a_2", "a_2"], ["a", "a_3", "a_2", "a_2_2"]),
        (["", "b", " "], ["column_1", "b", "column_3"]),
        (["", "column_1"], ["column_1", "column_1_2"]),
        (["  x \t", "\n y\n"], ["x", "y"]),
        (["a\r\nb", "a\n\nb", "a\rb"], ["a b", "a b_2", "a b_3"]),
        (["é", "É"], ["é", "É_2"]),
        (["null", "\\N"], ["null", "\\N"]),
    ],
)
def test_names_are_those_of_the_header_made_unique(header: list[str], names: list[str]) -> None:
    assert header_names(header, len(header)) == names


@pytest.mark.importer(30)
def test_names_have_at_most_255_characters_whatever_is_added() -> None:
    names = header_names(["x" * 300, "x" * 260, "x" * 255 + " y"], 3)
    assert names == ["x" * 255, "x" * 253 + "_2", "x" * 253 + "_3"]


def test_a_header_is_cut_and_filled_to_the_width() -> None:
    assert header_names(["a", "b", "c"], 2) == ["a", "b"]
    assert header_names(["a"], 3) == ["a", "column_2", "column_3"]


def test_two_thousand_equal_names_are_told_apart() -> None:
    names = header_names(["n"] * 2_000, 2_000)
    assert names[-1] == "n_2000"
    assert len(set(names)) == 2_000


def test_columns_without_a_header_are_numbered() -> None:
    assert numbered_names(3) == ["column_1", "column_2", "column_3"]
