"""Files below one directory of this machine."""
