"""Processes SQL text without I/O: splitter, tokenizer, statement classification, type texts, error positions.

New dialects are added in `connectors/engine_builders.py`.
"""
