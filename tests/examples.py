"""How many examples the tests of properties try: a quarter in every run, all of them in `make properties`."""

from hypothesis import settings

QUICK, THOROUGH = "quick", "thorough"

_EACH = 100
_FEWEST = 5

# A slow moment of the machine is no fault of what is tested.
settings.register_profile(THOROUGH, deadline=None, max_examples=_EACH)
settings.register_profile(QUICK, deadline=None, max_examples=_EACH // 4)


def examples(count: int) -> settings:
    """For a property that needs more or fewer than others: so many in a thorough run, and at least 5 in any."""
    return settings(max_examples=max(_FEWEST, count * settings.default.max_examples // _EACH))
