"""Statements as callers see them: submit, follow, read, end, look back."""
