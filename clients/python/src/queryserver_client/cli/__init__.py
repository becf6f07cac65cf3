"""`qs`, queryserver's command line. Needs the extra `cli`."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run `qs`, or print one line that says what to install."""
    if any(find_spec(name) is None for name in ("typer", "rich", "prompt_toolkit")):
        sys.exit("qs: the command line is not installed: pip install 'queryserver-client[cli]'")
    # If rich and click are installed, httpx imports its own command line with all of pygments, which takes 0.25 of 0.4
    # s of processor time. None marks a module as missing, and httpx works without it.
    sys.modules.setdefault("httpx._main", None)  # pyright: ignore[reportArgumentType]
    from queryserver_client.cli.commands import run  # noqa: PLC0415

    run()
