"""The settings: a TOML file, overridden by the environment, checked as a whole (Contract platform 11)."""
