"""Versity S3 Gateway: an S3 server that checks signatures, with its objects as plain files of a directory."""

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
    """Where the test server listens, and its administrator's keys. Buckets stand in the path (path style)."""

    http: HttpAddress
    access_key_id: str
    secret_access_key: str
    directory: Path
    """Where the buckets lie as directories."""
    pid: int
    guest_key_id: str
    guest_secret: str
    """Of a user to whom no bucket is open."""
    region: str = _REGION

    @property
    def url(self) -> str:
        """Of the endpoint, without a slash at its end."""
        return self.http.url


@contextmanager
def s3_server() -> Generator[S3Address]:
    """An empty store with keys of its own."""
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
        # Attributes beside the objects: not every file system has extended ones.
        store = ["posix", "--sidecar", str(attributes), str(buckets)]
        command = [program, *login, *options, *store]
        # As the caller: the program lies in the caller's cache.
        own_group = {"start_new_session": True}
        with serving(command, directory, lambda: listens(address.port), signal.SIGTERM, options=own_group) as process:
            admin = [program, "admin", *login, "--endpoint-url", address.url]
            run_tool(_NAME, [*admin, "create-user", *guest, "--role", "user"])
            yield S3Address(address, key_id, secret, buckets, process.pid, guest[1], guest[3])


@contextmanager
def flat_s3_server(account: HttpAddress) -> Generator[S3Address]:
    """The same gateway over an account of Azurite, where keys are flat: any text is one, `d` beside `d/x` too."""
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
    """Built by the Go tools, which check sources against the public database of their hashes."""

    def build(folder: Path) -> None:
        environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-trimpath", "CGO_ENABLED": "0"}
        run_tool(_NAME, [_go(), "install", "-ldflags", "-s -w", _PROGRAM.read_text().strip()], environment)

    return kept("versitygw", [_PROGRAM], build) / "versitygw"


def _go() -> str:
    """The machine's Go tools, or those of a package: Debian's are too old for the program."""
    return shutil.which("go") or str(python_packages("go", "go") / "go" / "bin" / "go")
