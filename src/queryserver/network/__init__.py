"""Connections to other servers: only to addresses that the operator allows."""
