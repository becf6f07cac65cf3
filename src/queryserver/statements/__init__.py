"""Statements: submit, run, follow, page, download, cancel, history, engine sessions."""
