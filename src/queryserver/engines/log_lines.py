"""What an engine says about a statement, kept until it is reported."""

MAX_LINES = 10_000
MAX_CHARACTERS = 1024 * 1024


class KeptLines(list[str]):
    """The first lines, at most MAX_LINES and MAX_CHARACTERS of them; the last one may be cut."""

    def __init__(self) -> None:
        super().__init__()
        self._room = MAX_CHARACTERS

    def keep(self, line: str) -> None:
        """Add a line if there is room for it."""
        if len(self) >= MAX_LINES or self._room <= 0:
            return
        self.append(line if len(line) <= self._room else f"{line[: self._room]}…")
        self._room -= len(line)
