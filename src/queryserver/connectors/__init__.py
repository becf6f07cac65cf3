"""Connectors: the catalogue of types, their options, stored instances, tests of connections."""
