"""Connectors: the catalogue of types, their options, stored instances, connection tests."""
