"""Free ports for servers that tests start."""

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 20_000
_SHARES = 16
_random = SystemRandom()  # tests share a seed, so the random module would give all processes equal numbers


def _candidates() -> Iterator[int]:
    """Yield the ports of this pytest worker in turn. Each worker has a share of its own, because a server may begin to
    listen long after its port was chosen.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    behind = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    share = range(_FIRST + worker % _SHARES, max(behind, _FIRST + 5_000), _SHARES)
    first = _random.randrange(len(share))
    yield from itertools.cycle([*share[first:], *share[:first]])


_ports = _candidates()


def free_port() -> int:
    """Return a free loopback port, which no other pytest worker uses. It is outside the range from which the system
    picks ports for outgoing connections.
    """
    while True:
        port = next(_ports)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
