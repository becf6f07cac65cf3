"""Caches that evict the least recently used values."""

from queryserver.platform.caches import LruCache


def test_least_recently_used_value_is_evicted_first():
    cache = LruCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    assert cache.put("c", 3) == ["b"]
    assert (list(cache), cache.get("b"), len(cache)) == (["a", "c"], None, 2)


def test_replaced_value_releases_its_weight():
    cache = LruCache[str, str](10, weigh=len)
    for _ in range(3):
        cache.put("a", "123456")
    cache.put("b", "1234")
    assert list(cache) == ["a", "b"]
    assert cache.pop("a") == "123456"
    assert cache.put("c", "123456") == []
    assert cache.put("d", "a text of more than ten") == ["b", "c", "d"]
    cache.clear()
    assert (len(cache), cache.put("e", "1234567890")) == (0, [])


def test_newest_value_is_kept_regardless_of_weight():
    cache = LruCache[str, str](3, weigh=len, min_values=1)
    cache.put("a", "1")
    assert cache.put("b", "12345") == ["a"]
    assert list(cache) == ["b"]


def test_value_expires_even_if_recently_used():
    now = 0.0
    cache = LruCache[str, int](2, life_s=60, clock=lambda: now)
    cache.put("a", 1)
    now = 59.9
    assert cache.get("a") == 1
    now = 60.0
    assert (cache.get("a"), "a" in cache) == (None, False)


def test_expired_values_are_reported_once():
    now = 0.0
    cache = LruCache[str, int](3, life_s=60, clock=lambda: now)
    cache.put("a", 1)
    cache.put("b", 2)
    now = 30.0
    cache.put("c", 3)
    assert cache.drop_old() == []
    now = 60.0
    assert (cache.drop_old(), cache.drop_old(), list(cache)) == (["a", "b"], [], ["c"])
