"""Runs statements and serves their status, results, downloads, cancellation, history and engine sessions."""
