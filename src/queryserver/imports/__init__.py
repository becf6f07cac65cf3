"""Files to tables: detection, types, preview, conversion, create_table."""
