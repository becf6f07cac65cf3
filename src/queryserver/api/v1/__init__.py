"""One file or folder for each path group of /api/v1."""
