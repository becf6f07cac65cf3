"""Server administration: client configuration, checks and logs."""
