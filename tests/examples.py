"""How many examples property tests try: a quarter in every run, all of them in `make properties`."""

from hypothesis import settings

QUICK, THOROUGH = "quick", "thorough"

_EACH = 100
_FEWEST = 5

# A briefly slow machine is not a failure of the code under test.
settings.register_profile(THOROUGH, deadline=None, max_examples=_EACH)
settings.register_profile(QUICK, deadline=None, max_examples=_EACH // 4)


def examples(count: int) -> settings:
    """Return settings for a property that needs more or fewer examples: `count` in a thorough run, at least 5 in any
    run."""
    return settings(max_examples=max(_FEWEST, count * settings.default.max_examples // _EACH))
