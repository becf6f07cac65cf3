"""The service database: tables and repositories."""
