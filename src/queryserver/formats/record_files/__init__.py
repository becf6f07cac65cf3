"""Parquet, Arrow, Avro and JSON Lines as batches of columns: files that name their columns themselves."""
