"""Shows progress on stderr if stderr is a terminal."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from queryserver_client.status import Progress

_SHOWN_AFTER_S = 0.4

OnBytes = Callable[[int, int | None], None]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Re-raise the current BrokenPipeError, so that it is handled as for other output. Rich would exit with 1."""
        raise  # noqa: PLE0704


def output_console() -> Console:
    return _Console(highlight=False, markup=False, emoji=False)


def error_console() -> Console:
    return _Console(stderr=True, highlight=False, markup=False, emoji=False)


class ProgressLine:
    """A line with the elapsed time and the progress that the server reports. It disappears when the statement ends."""

    def __init__(self) -> None:
        from rich.status import Status  # noqa: PLC0415

        self._began = time.monotonic()
        self._said = "waiting"
        self._status = Status(self, console=error_console(), refresh_per_second=8)
        self._is_shown = False

    def __rich__(self) -> str:
        return f"{self._said}, {time.monotonic() - self._began:.0f} s (Ctrl-C cancels)"

    def on_progress(self, progress: "Progress") -> None:
        """Update the displayed progress. Called in the connection's thread."""
        rows = f", {progress.rows:,} rows" if progress.rows else ""
        self._said = f"running, {progress.percent} %{rows}"

    @contextmanager
    def shown(self) -> Generator[None, None, None]:
        """Show the line inside the block if the statement takes longer than 0.4 s."""
        from threading import Timer  # noqa: PLC0415

        timer = Timer(_SHOWN_AFTER_S, self._status.start)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            self._status.stop()


@contextmanager
def byte_bar(label: str, *, is_wanted: bool = True) -> "Generator[OnBytes | None, None, None]":
    """Yield a function `on_bytes(done, total)` that updates a progress bar.

    Yields None if stderr is not a terminal or `is_wanted` is not set.
    """
    if not is_wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=error_console(), transient=False) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
