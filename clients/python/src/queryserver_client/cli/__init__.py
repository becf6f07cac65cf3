"""`qs`, the command line of queryserver. Needs the extra `cli`."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run `qs`, or say in one line what to install."""
    if any(find_spec(name) is None for name in ("typer", "rich", "prompt_toolkit")):
        sys.exit("qs: the command line is not installed: pip install 'queryserver-client[cli]'")
    # httpx imports its own command line, with all of pygments, where rich and click are installed: 0.25 of 0.4 s of
    # processor time. None is Python's mark for a module that shall not be found, and httpx does without.
    sys.modules.setdefault("httpx._main", None)  # pyright: ignore[reportArgumentType]
    from queryserver_client.cli.commands import run  # noqa: PLC0415

    run()
