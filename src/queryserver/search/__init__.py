"""The metadata search: its query language, its sources and its index."""
