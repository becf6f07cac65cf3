"""The settings: a TOML file, overridden by environment variables and validated as a whole (Contract platform 11)."""
