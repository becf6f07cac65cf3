"""Conversion of rows to bytes and back, without I/O: cells in responses, result files, imported files."""
