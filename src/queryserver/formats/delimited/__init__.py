"""Delimited text: encoding, separators, records."""
