"""Metadata of data sources: lists, descriptions, samples, statistics, plans."""
