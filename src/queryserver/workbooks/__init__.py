"""Worker processes that read workbooks."""
