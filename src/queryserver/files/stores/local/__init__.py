"""Files below a local directory."""
