"""Python client of queryserver."""
