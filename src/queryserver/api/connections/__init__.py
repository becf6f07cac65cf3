"""Limits on client connections: how many are open, and how long each may wait."""
