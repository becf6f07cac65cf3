"""The embedded mode: a private PostgreSQL, sample data and a first administrator, starting from an empty directory."""
