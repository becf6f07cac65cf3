"""Stored results: Arrow segments in a file store."""
