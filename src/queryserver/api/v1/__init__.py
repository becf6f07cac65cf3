"""The calls below /api/v1: one module or package for each path group."""
