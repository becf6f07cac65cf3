"""SQL engines: the Protocols, what several engines share, and a folder for each engine."""
