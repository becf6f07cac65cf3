"""The settings: a TOML file, overridden by the environment, checked as a whole (Contract platform 11)."""

from queryserver.settings.loading import load_settings as load_settings
from queryserver.settings.tree import Origin as Origin
from queryserver.settings.tree import Settings as Settings
