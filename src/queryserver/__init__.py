"""An asynchronous query server with a REST API that runs SQL on any engine. Every instance can serve every call."""


def __getattr__(name: str) -> str:
    """Look up `__version__` on demand, because the lookup takes 40 ms, half the start time of a workbook worker."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version  # noqa: PLC0415 see above

    return version("queryserver")
