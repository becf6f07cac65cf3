"""File stores: one folder for each kind."""
