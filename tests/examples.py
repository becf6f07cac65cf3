"""Sets the number of examples that property tests try: a quarter of them in ordinary runs, all in `make properties`."""

from hypothesis import settings

QUICK, THOROUGH = "quick", "thorough"

_EACH = 100
_FEWEST = 5

# Examples have no deadline, because a briefly slow machine is not a failure of the code under test.
settings.register_profile(THOROUGH, deadline=None, max_examples=_EACH)
settings.register_profile(QUICK, deadline=None, max_examples=_EACH // 4)


def examples(count: int) -> settings:
    """Return settings for a property test that needs more or fewer examples than usual.

    A thorough run tries `count` examples. A quick run tries a quarter of them, but at least 5.
    """
    return settings(max_examples=max(_FEWEST, count * settings.default.max_examples // _EACH))
