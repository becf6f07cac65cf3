"""Trino and Presto over the client REST protocol."""
