"""An async query server with a REST API: runs SQL on any engine; every instance can serve every call."""


def __getattr__(name: str) -> str:
    """`__version__`, looked up on demand: that takes 40 ms, half of the start time of a workbook worker."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version  # noqa: PLC0415 see above

    return version("queryserver")
