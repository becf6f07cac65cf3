"""Letters of columns as numbers."""

from queryserver.domain.errors import FileCorrupt, file_too_complex

MAX_GRID_COLUMNS = 16_384
"""What a sheet can have. How many columns may be in use is the business of `used_range`."""


class ColumnNumbers(dict[str, int]):
    """`A` is 0. Raises FileCorrupt for what is no column, file_too_complex for one that no sheet can have."""

    def __missing__(self, letters: str) -> int:
        if not letters.isascii() or not letters.isalpha():
            raise FileCorrupt("A cell of the workbook has no place.")
        number = 0
        for letter in letters[:4].upper():
            number = number * 26 + ord(letter) - 64
        if number > MAX_GRID_COLUMNS:
            raise file_too_complex(f"The sheet has more than {MAX_GRID_COLUMNS:,} columns.")
        self[letters] = number - 1
        return number - 1
