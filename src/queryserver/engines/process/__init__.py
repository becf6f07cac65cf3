"""Engines that run in confined processes of their own: the program in the process, and its sessions in the server."""
