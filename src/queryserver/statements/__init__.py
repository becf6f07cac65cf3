"""Submits and runs statements: status, result pages, downloads, cancellation, history, engine sessions."""
