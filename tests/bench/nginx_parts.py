"""Uploads to the local root and downloads from it, compared with nginx and its WebDAV module, in the same run."""

import asyncio
import hashlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psutil
from tests.bench.processes import processor_s
from tests.bench.setting import Bench, Measured, bench_server
from tests.bench.storage_parts import run_curl, write_random_file
from tests.ports import free_port
from tests.timing import until

_MIB = 1024 * 1024
_SIZE_MIB = 512
_ROUNDS = 5
_TARGET = "file:///shared"
_CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors; {user}
events {{}}
http {{
    access_log off; client_max_body_size 0; sendfile on;
    client_body_temp_path {folder}/bodies; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ root {folder}/files; dav_methods PUT; }} }}
}}
"""


@dataclass(slots=True)
class _Cost:
    """The wall-clock and CPU seconds of each repetition."""

    walls_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        return statistics.median(self.walls_s)

    @property
    def shown(self) -> str:
        return f"{statistics.median(self.processor_s):.2f}"


async def against_nginx(folder: Path) -> list[Measured]:
    """Measure uploads and downloads of 512 MiB, alternating with nginx."""
    (folder / "root" / "shared").mkdir(parents=True)
    source = folder / "source"
    await asyncio.to_thread(write_random_file, source, _SIZE_MIB * _MIB)
    settings = {"QUERYSERVER__FILEBROWSER__LOCAL_ROOT": str(folder / "root")}
    async with bench_server(folder, settings=settings) as bench, _nginx(folder / "nginx") as (url, pid):
        costs = await _alternating(bench, source, url, pid, folder / "nginx" / "files" / "file")
    hash_s = await asyncio.to_thread(_hash_s, source)
    up, synced, ours = costs["nginx up"], costs["nginx up, fsync"], costs["up"]
    down, our_down = costs["nginx down"], costs["down"]
    return [
        Measured(f"local root: {_SIZE_MIB} MiB up / nginx", f"{up.wall_s / ours.wall_s:.2f}", ">= 0.8"),
        Measured("the same / nginx and an fsync of the file", f"{synced.wall_s / ours.wall_s:.2f}"),
        Measured("the same, processor of the server, of nginx", f"{ours.shown}, {up.shown} s"),
        Measured("the same, processor of SHA-256 alone", f"{hash_s:.2f} s"),
        Measured(f"local root: {_SIZE_MIB} MiB down / nginx", f"{down.wall_s / our_down.wall_s:.2f}"),
        Measured("the same, processor of the server, of nginx", f"{our_down.shown}, {down.shown} s"),
    ]


async def _alternating(bench: Bench, source: Path, url: str, nginx: int, stored: Path) -> dict[str, _Cost]:
    login = ["-H", f"Authorization: Bearer {bench.tokens[0]}"]
    base = f"{bench.server.base_url}/api/v1/storage"
    upload = f"{base}/upload/file?dest={quote(_TARGET)}&overwrite=true"
    costs = defaultdict[str, _Cost](_Cost)

    async def measure(name: str, pids: Sequence[int], work: Callable[[], Awaitable[object]]) -> None:
        used, began = processor_s(pids), time.perf_counter()
        await work()
        costs[name].walls_s.append(time.perf_counter() - began)
        costs[name].processor_s.append(processor_s(pids) - used)

    async def put_and_sync() -> None:
        await run_curl("-T", str(source), f"{url}/file")
        await asyncio.to_thread(_sync, stored)

    for _ in range(_ROUNDS):
        await measure("nginx up", [nginx], lambda: run_curl("-T", str(source), f"{url}/file"))
        await measure("nginx up, fsync", [nginx], put_and_sync)
        form = ["-F", f"local_file=@{source};filename=file", *login, upload]
        await measure("up", [bench.server.pid], lambda form=form: run_curl(*form))
        await measure("nginx down", [nginx], lambda: run_curl(f"{url}/file"))
        address = f"{base}/download={quote(f'{_TARGET}/file', safe='')}"
        await measure("down", [bench.server.pid], lambda address=address: run_curl(*login, address))
    return costs


@asynccontextmanager
async def _nginx(folder: Path) -> AsyncGenerator[tuple[str, int]]:
    """Run nginx, which stores uploads without syncing them. Yield its URL and the PID of its main process."""
    (folder / "files").mkdir(parents=True)
    port, configuration = free_port(), folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(_CONFIGURATION.format(folder=folder, port=port, user=user))
    process = await asyncio.create_subprocess_exec("nginx", "-c", str(configuration), "-p", str(folder))
    try:
        await until(psutil.Process(process.pid).children)  # it listens before it starts its worker
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        await process.wait()


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _hash_s(file: Path) -> float:
    """Return the CPU seconds that SHA-256 takes for the file's bytes, without reading them."""
    content, used = file.read_bytes(), time.thread_time()
    hashlib.sha256(content)
    return time.thread_time() - used
