"""Sets the examples that property tests try.

`make properties` tries new random examples each time. Ordinary runs try a quarter as many, and always the same ones, so
that a change does not fail because of a defect that was there before.
"""

from hypothesis import settings

QUICK, THOROUGH = "quick", "thorough"

_EACH = 100
_FEWEST = 5

# Examples have no deadline, because a briefly slow machine is not a failure of the code under test.
settings.register_profile(THOROUGH, deadline=None, max_examples=_EACH)
settings.register_profile(QUICK, deadline=None, max_examples=_EACH // 4, derandomize=True)


def examples(count: int) -> settings:
    """Return settings for a property test that needs more or fewer examples than usual.

    A thorough run tries `count` examples. A quick run tries a quarter of them, but at least 5.
    """
    return settings(max_examples=max(_FEWEST, count * settings.default.max_examples // _EACH))
