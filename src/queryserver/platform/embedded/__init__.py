"""The default from an empty directory: a private PostgreSQL, sample data, the first administrator."""
