"""Marks of pages: how long they live and how many there are."""

from queryserver.files.listing import BEGINNING, Cursors, Mark, PageStart
from queryserver.files.model import Scheme, StoragePath

PATH = StoragePath(Scheme.S3A, "b")


def start(entries_before: int, *, user: str = "ana", part: str = "", path: StoragePath = PATH) -> PageStart:
    return PageStart(user, path, part, entries_before)


class Clock:
    """Stands still until it is turned."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_mark_is_found_by_user_path_filter_and_page() -> None:
    cursors = Cursors()
    cursors.keep(start(30), Mark(20, "token"))
    assert cursors.mark(start(30)) == Mark(20, "token")
    for other in (start(60), start(30, user="bob"), start(30, part="x"), start(30, path=PATH.child("c"))):
        assert cursors.mark(other) == BEGINNING


def test_a_mark_lives_for_five_minutes() -> None:
    clock = Clock()
    cursors = Cursors(clock=clock)
    cursors.keep(start(30), Mark(20, "token"))
    clock.now = 299.9
    assert cursors.mark(start(30)) == Mark(20, "token")
    clock.now = 300
    assert cursors.mark(start(30)) == BEGINNING


def test_the_mark_that_was_asked_for_longest_ago_makes_room() -> None:
    cursors = Cursors(max_marks=3)
    for page in (1, 2, 3):
        cursors.keep(start(page), Mark(page, f"token{page}"))
    cursors.mark(start(1))
    cursors.keep(start(4), Mark(4, "token4"))
    assert [cursors.mark(start(page)).cursor for page in (1, 2, 3, 4)] == ["token1", None, "token3", "token4"]


def test_a_page_that_begins_at_the_beginning_takes_no_room() -> None:
    cursors = Cursors(max_marks=1)
    cursors.keep(start(30), Mark(20, "token"))
    cursors.keep(start(60), BEGINNING)
    assert cursors.mark(start(30)) == Mark(20, "token")
    cursors.keep(start(30), BEGINNING)
    assert cursors.mark(start(30)) == BEGINNING
