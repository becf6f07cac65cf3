"""The settings: a TOML file that the environment overrides, checked as a whole (Contract platform 11)."""
