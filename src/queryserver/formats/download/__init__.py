"""Encodes results for download as csv, tsv, xlsx, JSON Lines, Parquet, Arrow and Feather files."""
