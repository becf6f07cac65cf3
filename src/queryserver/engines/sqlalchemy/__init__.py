"""Supports any installed SQLAlchemy dialect with a blocking DBAPI driver, run in a bounded number of threads."""
