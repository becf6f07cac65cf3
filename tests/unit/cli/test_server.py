"""The address check that `serve` performs before it starts any service."""

import socket

import pytest

from queryserver.cli.server import require_free_address
from queryserver.errors.base import ConfigurationError


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_port_in_use_is_reported_with_the_options_to_change_it(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError) as refused:
            require_free_address(host, port)
    [problem] = refused.value.problems
    assert problem.startswith(f"desktop.http_port: {port} of {host} is already in use")
    assert "--port" in problem
    assert "PORT=" in problem
    require_free_address(host, port)


def test_foreign_address_is_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"desktop\.http_host: 192\.0\.2\.1 is not an address of this machine"):
        require_free_address("192.0.2.1", 8888)


@pytest.mark.parametrize("host", ["127.0.0.1", "::", "0.0.0.0", "no-such-name.invalid"])
def test_free_port_is_accepted(host: str) -> None:
    require_free_address(host, 0)
