"""Any installed SQLAlchemy dialect with a blocking DBAPI driver, in bounded threads."""
