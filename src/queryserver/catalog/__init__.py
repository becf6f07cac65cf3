"""Metadata of data sources: lists, descriptions, samples, statistics and query plans."""
