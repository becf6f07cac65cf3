"""Connection limits of a process: the configured limits, reduced to fit the open-file limit."""

import subprocess
import sys

import pytest

from queryserver.platform.networks import network_of

_PROGRAM = """
import resource
from queryserver.api.connections.admission import limits_of
from queryserver.platform.machine_limits import permitted_connections, raise_file_limit
from queryserver.platform.settings.desktop import DesktopSettings
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
raise_file_limit(2000)
limits = limits_of(DesktopSettings(max_connections=2000, max_connections_per_address=1000))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], limits.in_all, limits.per_address)
"""


def limits(soft: int, hard: int) -> tuple[list[int], bool]:
    """Return the soft open-file limit, the total and per-address connection limits, and whether a warning
    was logged.
    """
    program = _PROGRAM.format(soft=soft, hard=hard)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    *logged, numbers = ended.stdout.splitlines()
    return [int(word) for word in numbers.split()], any("limit on open files" in line for line in logged)


def test_soft_file_limit_is_raised_to_the_need():
    (soft, connections, of_one), warned = limits(1024, 4096)
    assert (connections, of_one) == (2000, 1000)
    assert 2000 < soft < 4096
    assert not warned


def test_low_hard_limit_reduces_connections():
    (soft, connections, of_one), warned = limits(512, 1024)
    assert soft == 1024
    assert connections < 1024 - 200
    # A single address still cannot use all connections.
    assert of_one == connections // 2
    assert warned


def test_sufficient_file_limit_is_unchanged():
    assert limits(4096, 4096) == ([4096, 2000, 1000], False)


@pytest.mark.parametrize(("peer", "address"),
    [("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
    ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"), ("unknown", "unknown"), ("", "")])  # fmt: skip
def test_addresses_one_client_can_vary_share_a_network(peer: str, address: str):
    assert network_of(peer) == address
