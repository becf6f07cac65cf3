"""File stores, with a folder or module for each kind. `files/build.py` describes how to add a scheme."""
