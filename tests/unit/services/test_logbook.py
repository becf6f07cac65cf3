"""Lines of a running statement: numbered without gaps, clean, bounded."""

from contextlib import suppress

import pytest

from queryserver.statements.run_record import Logbook, clean, storable


def test_numbers_go_on_from_report_to_report() -> None:
    book = Logbook(1000)
    book.add("one")
    with book.taken() as first:
        book.add("two")
    with book.taken() as second:
        pass
    assert (first, second) == ((0, ["one"]), (1, ["two"]))


def test_numbers_begin_after_the_lines_that_are_stored() -> None:
    book = Logbook(1000, stored_lines=1)
    book.add("one")
    with book.taken() as first:
        assert first == (1, ["one"])


def test_lines_of_a_failed_report_come_again_under_the_same_number() -> None:
    book = Logbook(1000)
    book.add("one")
    with suppress(OSError), book.taken():
        book.add("two")
        raise OSError
    with book.taken() as again:
        assert again == (0, ["one", "two"])
    assert not book.has_news


def test_above_the_limit_old_lines_are_given_up_and_a_line_says_so() -> None:
    book = Logbook(100)
    for number in range(5):
        book.add(f"{number}" * 40)
        with book.taken():
            pass
    assert book.overflow() == 3
    with book.taken() as (start, lines):
        assert start == 5
        assert lines == ["Log lines before number 3 were dropped: the log reached its size limit."]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("password=hunter2 rest", "password=******** rest"),
        ("TOKEN: 'a b' x", "TOKEN: ******** x"),
        ("a\x1b[31mb", "a [31mb"),
        ("tab\tstays", "tab\tstays"),
        ("half \ud83d pair", "half   pair"),
    ],
)
def test_lines_are_clean(line: str, shown: str) -> None:
    assert clean(line) == shown


def test_storable_text_keeps_everything_else() -> None:
    assert storable("é\n\t😀") == "é\n\t😀"
    assert storable("a\x00\udc00b") == "a\ufffd\ufffdb"


def test_engine_lines_are_counted_as_the_engine_counts_them() -> None:
    book = Logbook(1000)
    book.add_engine(["first\nsecond", ""])
    assert book.engine_lines == 2
    with book.taken() as (_, lines):
        assert lines == ["first", "second", ""]


def test_an_endless_line_of_an_engine_is_cut() -> None:
    assert len(clean("x" * 10_000_000)) < 70_000
    assert len(storable("x" * 10_000_000)) < 70_000
    assert storable("short\x00") == "short\ufffd"


def test_lines_that_come_at_once_stay_within_the_limit_of_the_log() -> None:
    book = Logbook(1000)
    book.add_engine(["x" * 300] * 1000)
    book.add("ours")
    with book.taken() as (_, lines):
        assert lines == [*["x" * 300] * 3, "ours", "997 log lines were dropped: too many came at once."]
    assert not book.has_news
    book.add_engine(["after"])
    with book.taken() as (start, lines):
        assert (start, lines) == (5, ["after"])


def test_a_text_of_many_lines_is_cut_before_it_is_divided() -> None:
    book = Logbook(1000)
    book.add_engine(["x\n" * 10_000_000])
    with book.taken() as (_, lines):
        assert lines == ["x"] * 500
