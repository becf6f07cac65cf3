"""The metadata search: query language, sources and index."""
