"""An async query server with a REST API: SQL on any engine, any instance answers."""


def __getattr__(name: str) -> str:
    """`__version__`, looked up when asked for: that takes 40 ms, half of what a worker for workbooks takes to start."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version  # noqa: PLC0415 see above

    return version("queryserver")
