"""Sends the rows of statements to files in stores and to tables of connectors."""
