"""Converts rows to bytes and back, without I/O, for cells in responses, result files and imported files."""
