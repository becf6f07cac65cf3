"""Engines that run in separate confined processes: the program of the process, and its sessions in the server."""
