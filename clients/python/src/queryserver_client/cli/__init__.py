"""The command-line client `qs`. Needs the extra `cli`."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run `qs`. If a package is missing, exit with a message that contains the install command."""
    if any(find_spec(name) is None for name in ("typer", "rich", "prompt_toolkit")):
        sys.exit("qs: the command line is not installed: pip install 'queryserver-client[cli]'")
    # If rich and click are installed, httpx imports its own command line and pygments, which takes 0.25 s of a total of
    # 0.4 s CPU time. None marks the module as missing; httpx works without it.
    sys.modules.setdefault("httpx._main", None)  # pyright: ignore[reportArgumentType]
    from queryserver_client.cli.commands import run  # noqa: PLC0415

    run()
