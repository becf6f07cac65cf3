"""Workbooks and files of records, read in confined processes."""
