"""File stores: a folder or file for each kind. `files/build.py` says what a new scheme needs."""
