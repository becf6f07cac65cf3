"""Data source metadata: lists, descriptions, samples, statistics and query plans."""
