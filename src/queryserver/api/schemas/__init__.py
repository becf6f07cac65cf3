"""The wire format. Only `api` imports it."""
