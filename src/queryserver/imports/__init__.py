"""Imports files as tables: detection, types, preview, conversion, create_table."""
