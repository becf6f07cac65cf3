"""What cells and columns are, told from their text."""
