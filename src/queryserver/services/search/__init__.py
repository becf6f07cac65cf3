"""The metadata search: one file per source."""
