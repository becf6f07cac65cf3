"""Metadata of data sources, samples, statistics and plans (Contract editor 8.3, 10)."""
