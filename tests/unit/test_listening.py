"""The log line that says where the server listens."""

import socket

from structlog.testing import capture_logs

from queryserver.main import _log_address
from queryserver.platform.settings.desktop import DesktopSettings


def test_it_names_the_address_the_page_and_the_docs():
    for host, settings, begin, path in (
        ("127.0.0.1", {}, "http://127.0.0.1", "/"),
        ("127.0.0.1", {"url_prefix": "/query"}, "http://127.0.0.1", "/query/"),
        ("127.0.0.1", {"url_prefix": "/a/b/"}, "http://127.0.0.1", "/a/b/"),
        ("127.0.0.1", {"ssl_certificate": "a.pem", "ssl_private_key": "a.key"}, "https://127.0.0.1", "/"),
        ("::1", {}, "http://[::1]", "/"),
    ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as listener, capture_logs() as lines:
            try:
                listener.bind((host, 0))
            except OSError:
                assert host == "::1"  # a machine without IPv6
                continue
            url = f"{begin}:{listener.getsockname()[1]}{path}"
            _log_address(DesktopSettings(**settings), listener)
        (line,) = lines
        assert line["event"] == "queryserver listens"
        assert (line["url"], line["api_page"]) == (url, f"{url}api/docs")
        assert line["docs"].startswith("README.md")


def test_a_page_that_is_off_is_not_named():
    with socket.socket() as listener, capture_logs() as lines:
        listener.bind(("127.0.0.1", 0))
        _log_address(DesktopSettings(docs_enabled=False), listener)
    assert "api_page" not in lines[0]
