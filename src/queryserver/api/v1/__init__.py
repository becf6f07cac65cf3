"""One file per path group of /api/v1."""
