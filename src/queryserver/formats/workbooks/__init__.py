"""Workbooks: what kind a file is, and a streaming reader of xlsx (Contract importer 9.1, 12.2, 14.4)."""
