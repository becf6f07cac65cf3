"""Spreadsheets, read without running anything in them."""
