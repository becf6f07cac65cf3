"""The undocumented parts of uvicorn on which `uvicorn_internals.py` relies; each test covers one of them."""

import asyncio
import inspect

import pytest
import uvicorn
from tests.timing import until
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from queryserver.api.connections.uvicorn_internals import UvicornHttp, load_without_tls, use_protocol

REQUEST = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


class Socket(asyncio.Transport):
    """A transport that records the bytes written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Recorded(UvicornHttp):
    """An adapter that records its own events in `events` and the httptools callbacks in `parsed`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config, ServerState(), {})
        self.events: list[str] = []
        self.parsed: list[str] = []

    def response_ended(self) -> None:
        self.events.append("response")

    def malformed(self, message: str) -> None:
        self.events.append(message)

    def on_message_begin(self) -> None:
        self.parsed.append("begin")
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self.parsed.append("url")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.parsed.append("header")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.parsed.append("headers")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.parsed.append("body")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.parsed.append("end")
        super().on_message_complete()


async def application(scope, receive, send) -> None:
    if scope["path"] == "/broken":
        message = "the application failed"
        raise ValueError(message)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def config() -> uvicorn.Config:
    config = uvicorn.Config(application, lifespan="off", log_config=None, ws="none", timeout_keep_alive=0)
    config.load()
    return config


@pytest.fixture
async def connection(config: uvicorn.Config) -> Recorded:
    connection = Recorded(config)
    connection.connection_made(Socket())
    return connection


def test_protocol_class_has_the_expected_signatures():
    assert str(inspect.signature(HttpToolsProtocol.on_response_complete)) == "(self) -> 'None'"
    assert list(inspect.signature(HttpToolsProtocol.send_400_response).parameters) == ["self", "msg"]
    parameters = inspect.signature(HttpToolsProtocol).parameters
    assert list(parameters) == ["config", "server_state", "app_state", "_loop"]


async def test_request_is_parsed_by_documented_httptools_callbacks(connection: Recorded):
    body = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    connection.data_received(body)
    await until(lambda: connection.events)
    assert connection.parsed == ["begin", "url", "header", "headers", "body", "end"]


@pytest.mark.parametrize("request_", [REQUEST, REQUEST.replace(b"/ ", b"/broken ", 1)], ids=["ok", "500"])
async def test_each_response_emits_an_event(connection: Recorded, request_: bytes):
    connection.data_received(request_)
    await until(lambda: connection.events)
    assert connection.events == ["response"]
    assert connection.transport.sent.startswith(b"HTTP/1.1 ")


async def test_pipelined_requests_are_processed_in_order(connection: Recorded):
    connection.data_received(REQUEST * 3)
    await until(lambda: len(connection.events) == 3)
    assert connection.transport.sent.count(b"HTTP/1.1 200") == 3


async def test_malformed_input_emits_an_event_without_a_response(connection: Recorded):
    connection.data_received(b"\x16\x03\x01 hello\r\n\r\n")
    assert connection.events == ["Invalid HTTP request received."]
    assert not connection.transport.sent
    assert not connection.transport.is_closed


async def test_exception_in_an_httptools_callback_is_malformed_input(config: uvicorn.Config):
    class Refusing(Recorded):
        def on_headers_complete(self) -> None:
            raise ValueError

    connection = Refusing(config)
    connection.connection_made(Socket())
    connection.data_received(REQUEST)
    assert connection.events == ["Invalid HTTP request received."]


async def test_idle_connection_is_closed_unless_a_byte_arrives(config: uvicorn.Config):
    idle, used = Recorded(config), Recorded(config)
    for connection in (idle, used):
        connection.connection_made(Socket())
        connection.await_next_request()
    used.data_received(b"G")
    await until(lambda: idle.transport.is_closed)
    assert not used.transport.is_closed


async def test_clean_disconnect_stops_the_idle_timer(connection: Recorded):
    connection.await_next_request()
    connection.connection_lost(None)
    assert connection.timeout_keep_alive_task is None


def test_configuration_loads_without_tls_and_uses_our_protocol():
    config = uvicorn.Config(application, lifespan="off", log_config=None, ws="none")
    assert load_without_tls(config) is None
    use_protocol(config, Recorded)
    assert config.loaded
    assert config.ssl is None
    assert config.http_protocol_class is Recorded
