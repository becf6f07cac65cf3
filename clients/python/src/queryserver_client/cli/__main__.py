"""Runs `qs` as `python -m queryserver_client.cli`."""

from queryserver_client.cli import main

main()
