"""The command line (Contract platform 12). Each command imports what it needs when it runs: `version` is instant."""

from queryserver.cli.commands import main as main
