"""SQL text processing without I/O: splitter, tokenizer, statement classification, type names, error positions.

New dialects are added in `connectors/engine_builders.py`.
"""
