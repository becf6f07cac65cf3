"""Detects the types of cells and columns."""
