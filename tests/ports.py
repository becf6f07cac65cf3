"""Free ports for servers that tests start."""

import socket
from pathlib import Path
from random import SystemRandom

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 20_000
_random = SystemRandom()  # tests share a seed, so the random module would give all processes equal numbers


def free_port() -> int:
    """Return a free loopback port, which another process may still take. It is outside the range from which the system
    picks ports for outgoing connections.
    """
    behind = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    while True:
        port = _random.randrange(_FIRST, max(behind, _FIRST + 5_000))
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
