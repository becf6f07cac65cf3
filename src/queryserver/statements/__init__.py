"""Statements: submission, execution, status, result pages, downloads, cancellation, history, engine sessions."""
