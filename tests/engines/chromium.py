"""Headless Chromium, controlled over the DevTools protocol to open, query and capture pages."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tests.engines.servers import as_server_user, data_directory, require, serving, unprivileged_user

ENGINE = "chromium"
CALL_TIMEOUT_S = 60.0
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


def browser_program() -> Path:
    """Return the path of the installed Chromium, or skip or fail the test if there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    return require(Path(found) if found else None, ENGINE)


@contextmanager
def chromium() -> Generator[str]:
    """Run a browser; yield the address of its DevTools. The browser can reach only 127.0.0.1."""
    with data_directory() as directory:
        command: list[str | Path] = [
            browser_program(),
            "--headless=new",
            "--remote-debugging-port=0",
            f"--user-data-dir={directory}/profile",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "about:blank",
        ]
        if unprivileged_user():
            # The user is root, probably in a container, where unprivileged users usually cannot create the namespaces
            # that the sandbox needs. The browser opens only pages of the tests.
            command.insert(1, "--no-sandbox")
        port_file = directory / "profile" / "DevToolsActivePort"
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(directory), "TMPDIR": str(directory)}
        options = {**as_server_user(), "env": environment, "process_group": 0}
        ready = lambda: port_file.exists() and len(port_file.read_text().split()) == 2  # noqa: E731 a condition
        with serving(command, directory, ready, signal.SIGTERM, options=options):
            yield f"http://127.0.0.1:{port_file.read_text().split()[0]}"


class Page:
    """A browser tab. Calls wait for their responses; errors reported by the page are recorded."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        """Script errors and console errors."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a DevTools method; return its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(CALL_TIMEOUT_S):
            message = await answer
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    async def value(self, expression: str) -> Any:
        """Return an expression's value; await it if it is a promise. Fails if the script throws."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        thrown = found.get("exceptionDetails")
        assert thrown is None, json.dumps(thrown)[:3000] + "\n".join(self.complaints)
        return found["result"].get("value")

    async def screenshot(self) -> bytes:
        """Return a PNG screenshot of the page."""
        shown = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(shown["data"])

    async def listen(self) -> None:
        """Deliver responses to the waiting calls until the tab is closed."""
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            content = json.loads(message.data)
            if answer := self._answers.pop(content.get("id"), None):
                answer.set_result(content)
            elif content.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(content["params"]["exceptionDetails"])[:2000])
            elif content.get("method") == "Log.entryAdded" and content["params"]["entry"]["level"] == "error":
                self.complaints.append(json.dumps(content["params"]["entry"])[:2000])


@asynccontextmanager
async def opened(devtools: str, url: str) -> AsyncGenerator[Page]:
    """Open a tab and wait until `url` is loaded."""
    limit = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    async with aiohttp.ClientSession() as http:
        async with http.put(f"{devtools}/json/new?about:blank", timeout=limit) as answer:
            address = (await answer.json())["webSocketDebuggerUrl"]
        async with http.ws_connect(address, max_msg_size=_MAX_MESSAGE_BYTES) as socket:
            page = Page(socket)
            listening = asyncio.create_task(page.listen(), name="devtools")
            try:
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url)
                await page.value("new Promise(go => document.readyState == 'complete' ? go() : (onload = go))")
                yield page
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
