"""What this process holds open."""

from pathlib import Path


def open_below(directory: Path) -> list[str]:
    """Descriptors of this process that still point below a directory."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(directory))]
