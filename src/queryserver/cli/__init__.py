"""The command line (Contract platform 12). Each command imports what it needs when it runs."""
