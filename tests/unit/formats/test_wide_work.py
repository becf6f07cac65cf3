"""Work on very many columns goes one piece at a time, and never for ever."""

from concurrent.futures import ThreadPoolExecutor

from queryserver.formats.columns import _WIDE_WORK, begin_wide_work  # pyright: ignore[reportPrivateUsage]


def test_the_next_piece_begins_when_the_earlier_one_has_ended() -> None:
    end = begin_wide_work()
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(begin_wide_work)
        assert not following.done()
        end()
        following.result(timeout=60)()


def test_work_that_takes_long_is_not_waited_for() -> None:
    first, second = begin_wide_work(), begin_wide_work(wait_s=0.01)
    second()
    first()
    first()
    third = begin_wide_work()
    # Each end gave back what it had, and no more.
    assert not _WIDE_WORK.acquire(blocking=False)
    third()
