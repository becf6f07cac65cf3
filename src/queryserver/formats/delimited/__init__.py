"""Reads delimited text: encodings and records."""
