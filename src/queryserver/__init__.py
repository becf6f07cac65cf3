"""An async query server with a REST API: SQL on any engine, any instance answers."""

from importlib.metadata import version

__version__ = version("queryserver")
