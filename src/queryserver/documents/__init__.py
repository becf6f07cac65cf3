"""Documents: saved queries with versions, sharing and parameters (Contract documents)."""
