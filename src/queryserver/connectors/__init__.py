"""Implements connectors: the catalog of types, their options, stored instances and connection tests."""
