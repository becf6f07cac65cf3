"""Request bodies and query parameters: one module for each group of calls."""
