"""Results as files: csv, tsv, xlsx, JSON Lines, Parquet, Arrow, Feather."""
