"""Records of statements in PostgreSQL."""
