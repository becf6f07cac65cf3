"""The metadata search: its query language, its sources, its index."""
