"""Connects to Trino and Presto over their client REST protocol."""
