"""The container image, which buildah builds without a daemon, and which runs as its own user on a read-only root file
system.

Its base is a stand-in for an official Python image: a minimal Debian with Debian's own Python.
"""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.cache import RECIPES, kept, run_tool
from tests.engines.servers import require, unavailable

ENGINE = "image"
BUILD_TIMEOUT_S = 1200.0
PROJECT = Path(__file__).resolve().parents[2]

_BASE_SCRIPT = RECIPES / "image" / "base.sh"
_BASE = "localhost/standin-base"
_BASE_RECIPE = "FROM scratch\nADD base.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
_PIP_SETTINGS = frozenset(
    {"cert", "default-timeout", "extra-index-url", "index-url", "proxy", "timeout", "trusted-host"}
)

# Sets up what a container has in addition to its image: a read-only root, devices, processes, and mounts.
_ENTER = """
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
exec setpriv --no-new-privs chroot "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """A mounted image; `root` is the directory with its files."""

    root: Path
    settings: Mapping[str, Any]
    """The image's `config` object: User, Env, Entrypoint and so on."""
    own_bytes: int
    """Total size of all files, excluding the files of the base image."""

    def command(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        entrypoint: bool = True,
    ) -> list[str]:
        """Return a host command that runs `words` after the entrypoint, as in a container on the host's network.

        The command runs as the image's user and cannot gain privileges; only /tmp and the mounts are writable. `mounts`
        maps host directories to absolute paths in the container.
        """
        variables = {**dict(one.split("=", 1) for one in self.settings["Env"]), **(environment or {})}
        bound: list[str] = []
        for outside, inside in (mounts or {}).items():
            (self.root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
            bound += [str(outside), inside]
        run = [*(self.settings["Entrypoint"] if entrypoint else ()), *words]
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", str(self.root)]
        change = [f"--userspec={self.settings['User']}", "--groups=", str(self.root)]
        place = ["/usr/bin/env", "-i", "-C", self.settings["WorkingDir"]]
        return [*enter, *bound, "--", *change, *place, *(f"{name}={text}" for name, text in variables.items()), *run]


@contextmanager
def built_image(extras: str = "") -> Generator[Image]:
    """Build the Dockerfile's image with these extras and mount it; delete everything on exit."""
    for program in ("buildah", "debootstrap", "unshare", "setpriv"):
        require(_program(program), ENGINE)
    if os.geteuid() != 0:
        unavailable(ENGINE, "without a daemon an image is built by root only")
    base = base_archive()
    directory = Path(tempfile.mkdtemp(prefix="qs-image-"))
    buildah = _Buildah(directory)
    # By default, SIGTERM ends a process without deleting its temporary files, which are several gigabytes here.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        base_bytes = _bytes(buildah.mounted(buildah.base(base)))
        image = buildah.build(extras)
        root = buildah.mounted(image)
        yield Image(root, buildah.settings(image), _bytes(root) - base_bytes)
    finally:
        # `buildah rm` would copy the storage before deleting it; nothing in the storage is mounted.
        subprocess.run(["rm", "-rf", "--one-file-system", directory], check=True)
        signal.signal(signal.SIGTERM, before)


def base_archive() -> Path:
    """Create the file system of the stand-in base image unless it is cached; return its archive."""
    return kept("image-base", [_BASE_SCRIPT], _make_base) / "base.tar"


class _Buildah:
    """buildah with its own storage in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def run(self, *words: str | Path, attempts: int = 1) -> str:
        """Run buildah; return its output. Skip the test as unavailable if the command fails."""
        storage = ["--root", self._directory / "storage", "--runroot", self._directory / "run"]
        command = ["buildah", *storage, "--storage-driver", "vfs", *words]
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self._directory)}
        return run_tool(ENGINE, command, environment, timeout_s=BUILD_TIMEOUT_S, attempts=attempts)

    def base(self, tar: Path) -> str:
        """Import the stand-in base image; return its name."""
        context = self._directory / "base"
        context.mkdir()
        shutil.copy(tar, context)
        (context / "Dockerfile").write_text(_BASE_RECIPE)
        self.run("bud", "--quiet", "--tag", _BASE, context)
        return _BASE

    def build(self, extras: str) -> str:
        """Build the Dockerfile's image; return its name."""
        arguments = ["--build-arg", f"BASE={_BASE}", "--build-arg", f"EXTRAS={extras}"]
        volumes = [word for volume in self._volumes() for word in ("--volume", volume)]
        # The OCI format has no health check. The build is attempted twice, because it downloads about a hundred
        # packages.
        words = ["bud", "--format", "docker", *arguments, *volumes, "--tag", "localhost/queryserver"]
        self.run(*words, PROJECT, attempts=2)
        return "localhost/queryserver"

    def mounted(self, image: str) -> Path:
        """Mount an image's files in a separate container; return the mount point."""
        container = self.run("from", "--pull-never", image).strip()
        return Path(self.run("mount", container).strip())

    def settings(self, image: str) -> Mapping[str, Any]:
        """Return an image's `config` object."""
        return json.loads(self.run("inspect", "--type", "image", image))["Docker"]["config"]

    def _volumes(self) -> list[str]:
        """Return volumes that let pip reach the package indexes during the build."""
        settings = _pip_settings()
        file = self._directory / "pip.conf"
        file.write_text("[global]\n" + "".join(f"{name} = {_indented(value)}\n" for name, value in settings.items()))
        volumes = [f"{file}:/etc/pip.conf:ro"]
        if certificate := settings.get("cert"):
            volumes.append(f"{certificate}:{certificate}:ro")
        return volumes


def _pip_settings() -> dict[str, str]:
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in _PIP_SETTINGS:
            found[name] = ast.literal_eval(value)
    return found


def _indented(value: str) -> str:
    """Indent the continuation lines of a multiline value, as pip's configuration file requires."""
    return value.replace("\n", "\n  ")


def _make_base(folder: Path) -> None:
    run_tool(ENGINE, ["env", "-C", folder, "sh", _BASE_SCRIPT])


def _program(name: str) -> Path | None:
    # Debian installs debootstrap in /usr/sbin.
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    return Path(found) if found else None


def _bytes(root: Path) -> int:
    """Return the total size of the files; a file with several hard links counts once."""
    command = ["du", "--summarize", "--apparent-size", "--block-size=1", root]
    return int(subprocess.run(command, capture_output=True, check=True).stdout.split()[0])
