"""The embedded mode: a private PostgreSQL, sample data and a first administrator, set up in an empty directory."""
