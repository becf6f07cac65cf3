"""Calls for the task server, and for the available upload space (Contract platform 10.6 to 10.8, storage 9.3)."""
