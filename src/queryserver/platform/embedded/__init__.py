"""The embedded mode sets up a private PostgreSQL, sample data and a first administrator in an empty directory."""
