"""A page with the unmodified modules of the npm package gethue, served from a separate origin."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.engines.cache import RECIPES, run_tool
from tests.engines.node import node_packages, program

_RECIPE = RECIPES / "gethue"


def bundle_page(engine: str, directory: Path) -> None:
    """Bundle the page and its script into the directory."""
    modules = gethue_modules(engine)
    node = program(engine, "node")
    run_tool(engine, [node, _RECIPE / "bundle.mjs", modules, _RECIPE / "page.js", directory / "bundle.js"])
    (directory / "index.html").write_bytes((_RECIPE / "index.html").read_bytes())


def gethue_modules(engine: str = "chromium") -> Path:
    """Return the folder `node_modules` that contains gethue."""
    return node_packages(engine, _RECIPE, cache="gethue")


@contextmanager
def origin_of(directory: Path) -> Generator[str]:
    """Serve a directory's files on a free loopback port; yield the origin."""
    handler = partial(_Quiet, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, name="page origin", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(timeout=10)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name of the standard library
        """Suppress the access log; the test checks the page's own messages."""
