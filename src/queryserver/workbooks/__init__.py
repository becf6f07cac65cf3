"""Reads workbooks and record files in sandboxed processes."""
