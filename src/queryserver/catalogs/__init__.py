"""Catalogue services that the metadata search asks instead of its own index."""
