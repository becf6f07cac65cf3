"""Detection of the types of cells and columns."""
