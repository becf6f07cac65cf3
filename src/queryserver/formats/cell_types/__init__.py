"""The types of cells and columns of text files."""
