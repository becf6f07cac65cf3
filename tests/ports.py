"""Ports for servers that a test starts."""

import socket
from pathlib import Path
from random import SystemRandom

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 20_000
_random = SystemRandom()  # the module's own functions return the same numbers in every test process


def free_port() -> int:
    """Return a loopback port that was free a moment ago, outside the range from which the system picks ports for
    connections."""
    behind = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    while True:
        port = _random.randrange(_FIRST, max(behind, _FIRST + 5_000))
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
