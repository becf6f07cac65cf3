"""Downloads of results as csv, tsv, xlsx, JSON Lines, Parquet, Arrow and Feather files."""
