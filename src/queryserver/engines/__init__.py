"""SQL engines: the Protocols, code shared by several engines, and a folder for each engine."""
