"""nginx and HAProxy with the configuration files in `deploy/`, in which only addresses and file paths are replaced."""

import shutil
import signal
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from tests.engines.certificates import Authority
from tests.engines.servers import as_server_user, data_directory, listens, require, run, serving
from tests.ports import free_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERVICE = "sql.example.org"
RELOAD_TIMEOUT_S = 30
_NO_CHANGES: Mapping[str, str] = {}
_PROGRAMS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that runs with a changed copy of its configuration file."""

    name: str
    port: int
    """The HTTPS port; `plain_port` is the HTTP port."""
    plain_port: int
    authority: Path
    settings: Path
    _reload: Callable[[], None]

    @asynccontextmanager
    async def client(self, address: str = "127.0.0.1", **headers: str) -> AsyncGenerator[httpx.AsyncClient]:
        """Open a client that sends the service's host name. Its connections come from the loopback address
        `address`.
        """
        transport = httpx.AsyncHTTPTransport(
            verify=ssl.create_default_context(cafile=self.authority), local_address=address
        )
        async with httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{self.port}",
            transport=transport,
            headers={"Host": SERVICE, **headers},
            timeout=60,
        ) as http:
            yield http

    def change(self, old: str, new: str) -> None:
        """Replace a string in the configuration and reload the proxy. Returns when all its processes use the new
        configuration.
        """
        _replace_in(self.settings, {old: new})
        self._reload()


@contextmanager
def nginx(servers: Sequence[int], changes: Mapping[str, str] = _NO_CHANGES) -> Generator[Proxy]:
    """Run nginx in front of two servers on these loopback ports. `changes` maps strings in the configuration to their
    replacements.
    """
    with _ready_to_run("nginx", "nginx/nginx.conf") as (program, directory, settings, ports, authority):
        temporary = "".join(
            f"  {kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        _replace_in(
            settings,
            {
                "http {\n": f"http {{\n{temporary}",
                "listen 80;": f"listen 127.0.0.1:{ports[0]};",
                "listen 443 ssl": f"listen 127.0.0.1:{ports[1]} ssl",
                "/etc/ssl/queryserver/tls.crt": f"{directory}/certificate.pem",
                "/etc/ssl/queryserver/tls.key": f"{directory}/key.pem",
                **_addresses(servers, "server queryserver-{number}:8888"),
                **changes,
            },
        )
        command = [program, "-p", directory, "-e", "stderr", "-c", settings]
        directives = f"pid {directory}/nginx.pid;"
        run([*command, "-g", directives, "-t"], directory)
        with serving(
            [*command, "-g", f"daemon off; {directives}"],
            directory,
            lambda: listens(ports[1]),
            signal.SIGQUIT,
            options=as_server_user(),
        ) as process:
            master = psutil.Process(process.pid)
            yield Proxy("nginx", ports[1], ports[0], authority, settings, lambda: _reload_nginx(master))


@contextmanager
def haproxy(servers: Sequence[int], changes: Mapping[str, str] = _NO_CHANGES) -> Generator[Proxy]:
    """Run HAProxy in front of two servers on these loopback ports. `changes` maps strings in the configuration to their
    replacements.
    """
    with _ready_to_run("haproxy", "haproxy/haproxy.cfg") as (program, directory, settings, ports, authority):
        pair = directory / "tls.pem"
        pair.touch(mode=0o600)
        pair.write_text("".join((directory / name).read_text() for name in ("certificate.pem", "key.pem")))
        shutil.chown(pair, (directory / "key.pem").owner())
        _replace_in(
            settings,
            {
                "bind :80\n": f"bind 127.0.0.1:{ports[0]}\n",
                "bind :443 ssl": f"bind 127.0.0.1:{ports[1]} ssl",
                "/etc/haproxy/tls.pem": str(pair),
                **_addresses(servers, "queryserver-{number}:8888"),
                **changes,
            },
        )
        run([program, "-c", "-f", settings], directory)
        command = [program, "-db", "-f", settings]
        ready = lambda: listens(ports[1])  # noqa: E731 an argument
        with serving(command, directory, ready, signal.SIGTERM, options=as_server_user()):
            yield Proxy("haproxy", ports[1], ports[0], authority, settings, lambda: pytest.fail("it reads is_ready"))


PROXIES = {"nginx": nginx, "haproxy": haproxy}
"""The functions that run a proxy, by its name, which is also its engine mark."""


@contextmanager
def _ready_to_run(engine: str, file: str) -> Generator[tuple[Path, Path, Path, tuple[int, int], Path]]:
    """Yield the program, its directory, its configuration file, the ports for HTTP and HTTPS, and the certificate
    authority's file.

    The directory contains the server's certificate and key.
    """
    found = shutil.which(engine, path=_PROGRAMS)
    program = require(Path(found) if found else None, engine)
    with data_directory() as directory:
        authority = Authority()
        authority.certify("127.0.0.1", SERVICE).write(directory)
        signer = directory / "authority.pem"
        signer.write_text(authority.certificate)
        settings = directory / Path(file).name
        settings.write_text((DEPLOY / file).read_text())
        yield program, directory, settings, (free_port(), free_port()), signer


def _reload_nginx(master: psutil.Process) -> None:
    """Reload nginx, and wait until all processes with the old configuration have exited. Until then, they may close an
    idle connection just when a client sends a request on it.
    """
    former = set(master.children())
    master.send_signal(signal.SIGHUP)
    give_up = time.monotonic() + RELOAD_TIMEOUT_S
    while not (present := set(master.children())) or present & former:
        assert time.monotonic() < give_up, "nginx did not read its settings again"
        time.sleep(0.02)


def _addresses(servers: Sequence[int], written: str) -> Mapping[str, str]:
    return {
        (old := written.format(number=number)): old.replace(f"queryserver-{number}:8888", f"127.0.0.1:{port}")
        for number, port in enumerate(servers, start=1)
    }


def _replace_in(settings: Path, replacements: Mapping[str, str]) -> None:
    text = settings.read_text()
    for old, new in replacements.items():
        assert text.count(old) == 1, f"{settings.name} has {text.count(old)} times: {old}"
        text = text.replace(old, new)
    settings.write_text(text)
