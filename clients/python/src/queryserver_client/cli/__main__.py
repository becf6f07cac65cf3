"""`python -m queryserver_client.cli` is `qs`."""

from queryserver_client.cli import main

main()
