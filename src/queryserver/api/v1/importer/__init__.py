"""Import of files into tables (Contract importer)."""
