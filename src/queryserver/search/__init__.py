"""Implements the metadata search: query language, sources and index."""
