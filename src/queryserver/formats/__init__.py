"""Rows to bytes, without I/O: cells on the wire, and files of results."""
