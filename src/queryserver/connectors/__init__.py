"""Connectors: the catalogue of types, their options, stored instances and connection tests."""
