"""MariaDB from the system's packages, as the wire-compatible stand-in for MySQL (Debian: mariadb-server-core)."""

import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.certificates import ServerCertificate
from tests.engines.servers import ServerAddress, data_directory, listens, require, run, serving
from tests.ports import free_port

_PROGRAMS = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "8M",
    "innodb-flush-log-at-trx-commit": "0",
    "skip-name-resolve": "1",
    "character-set-server": "utf8mb4",
    "max-allowed-packet": "64M",
}
_ACCOUNT = """\
CREATE DATABASE users;
CREATE USER admin@'%' IDENTIFIED BY 'secret';
GRANT ALL ON *.* TO admin@'%' WITH GRANT OPTION;
CREATE USER private@'%' IDENTIFIED BY 'secret' REQUIRE SSL;
GRANT ALL ON users.* TO private@'%';
"""


@contextmanager
def mariadb_server(certificate: ServerCertificate | None = None) -> Generator[ServerAddress]:
    """Start MariaDB with an empty data directory, a database `users`, an administrator, and a user `private` who may
    log in only over TLS.

    If no certificate is given, the server offers no TLS. The server uses a separate directory for temporary tables,
    because a starting server deletes all files of temporary tables in the default directory, including those of a
    server that is being installed.
    """
    server = require(_program("mariadbd"), "mariadb")
    installer = require(_program("mariadb-install-db"), "mariadb")
    with data_directory() as directory:
        data = directory / "data"
        run(
            [installer, "--no-defaults", f"--datadir={data}", f"--tmpdir={directory}", "--skip-test-db",
             "--auth-root-authentication-method=normal", "--skip-log-bin"],
            directory,
        )  # fmt: skip
        accounts = directory / "accounts.sql"
        accounts.write_text(_ACCOUNT)
        address = ServerAddress("127.0.0.1", free_port(), "admin", "secret")
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        places = [f"--datadir={data}", f"--tmpdir={directory}", f"--port={address.port}", f"--socket={directory / 's'}"]
        if certificate is not None:
            file, key = certificate.write(directory)
            places += [f"--ssl-cert={file}", f"--ssl-key={key}"]
        command = [server, "--no-defaults", *places, *settings, f"--init-file={accounts}"]
        # The server reads the init file before it opens the port.
        with serving(command, directory, lambda: listens(address.port), signal.SIGTERM):
            yield address


def _program(name: str) -> Path | None:
    found = shutil.which(name, path=_PROGRAMS)
    return Path(found) if found else None
