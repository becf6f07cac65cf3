"""Readers of workbooks: worker processes with limits, for files that strangers made (Contract importer 14.4)."""
