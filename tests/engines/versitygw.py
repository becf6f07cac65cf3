"""Versity S3 Gateway, an S3 server that checks signatures and stores objects as plain files in a directory."""

import os
import secrets
import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.azurite import ACCOUNT, ACCOUNT_KEY
from tests.engines.cache import RECIPES, kept, python_packages, run_tool
from tests.engines.servers import HttpAddress, data_directory, listens, serving
from tests.ports import free_port

_NAME = "s3"
_PROGRAM = RECIPES / "versitygw" / "program"
_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Address:
    """The test server's address, and its administrator's keys. Bucket names are part of the path (path style)."""

    http: HttpAddress
    access_key_id: str
    secret_access_key: str
    directory: Path
    """The directory that contains one directory per bucket."""
    pid: int
    guest_key_id: str
    guest_secret: str
    """The secret of a user who has no access to any bucket."""
    region: str = _REGION

    @property
    def url(self) -> str:
        """The endpoint without a trailing slash."""
        return self.http.url


@contextmanager
def s3_server() -> Generator[S3Address]:
    """Start a gateway over an empty directory, with new keys."""
    program = versitygw_program()
    address = HttpAddress("127.0.0.1", free_port())
    key_id, secret = f"tests{secrets.token_hex(6)}", secrets.token_hex(20)
    with data_directory() as directory:
        buckets, attributes, users = (directory / name for name in ("buckets", "attributes", "users"))
        for part in (buckets, attributes, users):
            part.mkdir()
        login = ["--access", key_id, "--secret", secret]
        guest = ["--access", "guest", "--secret", secrets.token_hex(20)]
        options = ["--port", f"{address.host}:{address.port}", "--region", _REGION, "--keep-alive", "--quiet"]
        options += ["--iam-dir", str(users)]
        # Attributes are stored in sidecar files, because not every file system supports extended attributes.
        store = ["posix", "--sidecar", str(attributes), str(buckets)]
        command = [program, *login, *options, *store]
        # The gateway runs as the caller, whose cache contains the program.
        own_group = {"start_new_session": True}
        with serving(command, directory, lambda: listens(address.port), signal.SIGTERM, options=own_group) as process:
            admin = [program, "admin", *login, "--endpoint-url", address.url]
            run_tool(_NAME, [*admin, "create-user", *guest, "--role", "user"])
            yield S3Address(address, key_id, secret, buckets, process.pid, guest[1], guest[3])


@contextmanager
def flat_s3_server(account: HttpAddress) -> Generator[S3Address]:
    """Start the same gateway over an Azurite account, in which keys are flat: `d` and `d/x` may both be keys."""
    address = HttpAddress("127.0.0.1", free_port())
    key_id, secret = f"tests{secrets.token_hex(6)}", secrets.token_hex(20)
    with data_directory() as directory:
        login = ["--access", key_id, "--secret", secret]
        options = ["--port", f"{address.host}:{address.port}", "--region", _REGION, "--quiet"]
        store = ["azure", "--account", ACCOUNT, "--access-key", ACCOUNT_KEY, "--url", f"{account.url}/{ACCOUNT}"]
        command = [versitygw_program(), *login, *options, *store]
        own_group = {"start_new_session": True}
        with serving(command, directory, lambda: listens(address.port), signal.SIGTERM, options=own_group) as process:
            yield S3Address(address, key_id, secret, directory, process.pid, "", "")


def versitygw_program() -> Path:
    """Build the gateway with Go, which verifies sources against the public checksum database; return its path."""

    def build(folder: Path) -> None:
        environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-trimpath", "CGO_ENABLED": "0"}
        run_tool(_NAME, [_go(), "install", "-ldflags", "-s -w", _PROGRAM.read_text().strip()], environment)

    return kept("versitygw", [_PROGRAM], build) / "versitygw"


def _go() -> str:
    """Return the path of the Go command of the system or of a Python package. Debian's own version is too old for the
    gateway.
    """
    return shutil.which("go") or str(python_packages("go", "go") / "go" / "bin" / "go")
