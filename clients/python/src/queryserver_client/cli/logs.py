"""Prints the warnings of the client library, such as retries, like the messages of the commands."""

import logging
import sys


def print_logs() -> None:
    """Print warnings on stderr. If it is a terminal, also print that a slow server has not responded yet."""
    logging.basicConfig(handlers=[_Messages()], level=logging.WARNING)
    if sys.stderr.isatty():
        logging.getLogger("queryserver_client").setLevel(logging.INFO)


class _Messages(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Imported here, because qs --help must not load HTTP. The stream is that of the moment: while a progress line
        # is shown, rich replaces sys.stderr, so that messages are printed above the line.
        from queryserver_client.cli.failures import say  # noqa: PLC0415

        say(record.getMessage())
