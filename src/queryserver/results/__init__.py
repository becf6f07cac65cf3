"""Stored results behind `interfaces.results`."""
