"""SQL as text, without I/O: the splitter, tokens, kinds of statements, type texts, error positions.

A dialect is added in `connectors/engine_builders.py`.
"""
