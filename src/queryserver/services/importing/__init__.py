"""Files to tables (Contract importer)."""
