"""Work on very many columns goes one piece at a time, and never for ever."""

from concurrent.futures import ThreadPoolExecutor

from queryserver.formats import columns as wide_work


def test_the_next_piece_begins_when_the_earlier_one_has_ended() -> None:
    end = wide_work.begin()
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(wide_work.begin)
        assert not following.done()
        end()
        following.result(timeout=60)()


def test_work_that_takes_long_is_not_waited_for() -> None:
    first, second = wide_work.begin(), wide_work.begin(wait_s=0.01)
    second()
    first()
    first()
    third = wide_work.begin()
    # Each end gave back what it had, and no more.
    assert not wide_work._PLACE.acquire(blocking=False)
    third()
