"""Stored results: Arrow segments in a store of files."""
