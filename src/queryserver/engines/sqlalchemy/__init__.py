"""Supports any installed SQLAlchemy dialect with a blocking DBAPI driver. Driver calls run in a few threads."""
