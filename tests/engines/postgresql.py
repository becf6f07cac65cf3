"""PostgreSQL from the system's packages, for tests of an earlier version and of extensions."""

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.certificates import ServerCertificate
from tests.engines.servers import ServerAddress, data_directory, require, run, serving
from tests.ports import free_port

BINARIES = Path("/usr/lib/postgresql/15/bin")
_SETTINGS = {"fsync": "off", "shared_buffers": "64MB", "unix_socket_directories": "", "listen_addresses": "127.0.0.1"}

_TLS_RULES = """\
hostssl all all 127.0.0.1/32 scram-sha-256
hostnossl all admin 127.0.0.1/32 scram-sha-256
"""


@contextmanager
def system_server(certificate: ServerCertificate | None = None) -> Generator[ServerAddress]:
    """Start PostgreSQL 15 with an empty data directory (Debian: postgresql-15).

    If a certificate is given, only the administrator may log in without TLS. If not, the server offers no TLS.
    """
    require(BINARIES / "postgres", "postgresql15")
    with data_directory() as directory:
        address = ServerAddress("127.0.0.1", free_port(), "admin", "secret")
        data, password_file = directory / "data", directory / "password"
        password_file.write_text(address.password)
        initdb = [BINARIES / "initdb", "-D", data, "-U", address.user, "--pwfile", password_file, "-A", "scram-sha-256"]
        run([*initdb, "-E", "UTF8", "--locale=C", "--no-sync"], directory, env={**os.environ, "LC_ALL": "C"})
        chosen = _SETTINGS if certificate is None else _SETTINGS | _tls_settings(certificate, directory, data)
        settings = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
        command = [BINARIES / "postgres", "-D", data, "-p", str(address.port), *settings]
        with serving(command, directory, lambda: accepts(address), signal.SIGINT):
            yield address


def _tls_settings(certificate: ServerCertificate, directory: Path, data: Path) -> dict[str, str]:
    (data / "pg_hba.conf").write_text(_TLS_RULES)
    file, key = certificate.write(directory)
    return {"ssl": "on", "ssl_cert_file": str(file), "ssl_key_file": str(key)}


def accepts(address: ServerAddress) -> bool:
    readiness_check = [BINARIES / "pg_isready", "-q", "-h", address.host, "-p", str(address.port)]
    return subprocess.run(readiness_check).returncode == 0
