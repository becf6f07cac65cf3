"""SQL as text, without I/O: splitter, tokenizer, statement classification, type texts, error positions.

A dialect is added in `connectors/engine_builders.py`.
"""
