"""The command line (Contract platform 12). Commands import what they need when they run, so `version` is instant."""

from queryserver.cli.commands import main as main
