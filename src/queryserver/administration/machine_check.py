"""Checks free disk space, the limit on open files, and process confinement on this machine."""

import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from queryserver.administration.doctor import Finding
from queryserver.platform.confinement import KernelSupport, detect_support
from queryserver.platform.disk_floor import DiskFloor, disk_floor
from queryserver.platform.open_files import permitted_connections
from queryserver.platform.settings.sections import LocalResults
from queryserver.platform.settings.tree import Settings, SettingsFinding

_GIB = 1024**3
_CONNECTIONS = "desktop.max_connections"


def directories(settings: Settings) -> Mapping[str, Path]:
    """Return the directories that the service uses, by purpose. Excludes result stores on other machines."""
    results = settings.desktop.task_server.result_file_storage
    found = {"the data directory": settings.desktop.data_dir, "uploads": settings.uploads_dir}
    if results is None or isinstance(results, LocalResults):
        found["results"] = settings.results_dir if results is None else Path(results.location)
    if settings.filebrowser.local_root is not None:
        found["the local root"] = settings.filebrowser.local_root
    return found


async def examine_disks(settings: Settings) -> Sequence[Finding]:
    """Compare the free space of each directory with the configured floor. A hanging mount blocks only a thread."""
    floor = disk_floor(settings)
    rooms = (asyncio.to_thread(_disk, name, directory, floor) for name, directory in directories(settings).items())
    return await asyncio.gather(*rooms)


def _disk(name: str, directory: Path, floor: DiskFloor) -> Finding:
    area = "disk"
    # The directory may not exist yet. Its nearest existing parent is on the same disk.
    measured = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists())
    try:
        room, free = floor.room(measured, fresh=True), shutil.disk_usage(measured).free
    except OSError as error:
        what = f"{directory} ({name}) cannot be read: {error.strerror or type(error).__name__}."
        return Finding.error(area, what, "Check the mount and its permissions.")
    text = f"{free / _GIB:.1f} GiB are free for {name} in {directory}"
    floor_text = f"the floor of desktop.min_free_percent and desktop.min_free_bytes is {(free - room) / _GIB:.1f} GiB"
    if not floor.is_off and room <= 0:
        to_do = (
            "Free up space: `queryserver cleanup`, `queryserver close_queries 0`, empty trashes. Or lower the floor."
        )
        return Finding.error(area, f"{text}; {floor_text}: uploads, imports and large results are rejected.", to_do)
    if not floor.is_off and room < free - room:
        return Finding.warning(
            area, f"{text}; {floor_text}.", "Free up space, or enlarge the disk, before the floor is reached."
        )
    return Finding.ok(area, f"{text}.")


def file_limit_findings(settings: Settings) -> Iterator[SettingsFinding]:
    """Warn if the limit on open files is too low for `desktop.max_connections`."""
    permitted = permitted_connections(hard=True)
    if permitted < settings.desktop.max_connections:
        text = f"exceeds the {permitted} connections that the hard limit on open files permits on this machine."
        yield SettingsFinding.warning(_CONNECTIONS, text)


async def examine_limits(settings: Settings) -> Sequence[Finding]:
    area = "limits"
    found = [Finding.of_settings(area, one) for one in file_limit_findings(settings)]
    permitted = permitted_connections(hard=True)
    well = f"The limit on open files permits {_CONNECTIONS} = {settings.desktop.max_connections}."
    to_do = f"Increase the hard limit (ulimit -Hn, LimitNOFILE in systemd), or decrease {_CONNECTIONS} to {permitted}."
    return [Finding(area, one.state, one.what, to_do) for one in found] or [Finding.ok(area, well)]


async def examine_confinement() -> Sequence[Finding]:
    """Report how far the kernel can confine the processes that run DuckDB and read users' files."""
    return [_confinement(await asyncio.to_thread(detect_support))]


def _confinement(support: KernelSupport) -> Finding:
    area = "confinement"
    missing = [
        *([] if support.landlock_abi else ["without Landlock they can open any file that the service can open"]),
        *(
            []
            if support.seccomp
            else ["without seccomp they can start programs, open connections and signal other processes"]
        ),
    ]
    if not missing:
        what = f"Landlock (version {support.landlock_abi}) and seccomp confine the processes that run user code."
        return Finding.ok(area, what)
    what = f"Processes that run user code have memory and time limits, but {', and '.join(missing)}."
    return Finding.warning(area, what, "See docs/operations/security.md for supported kernels and container settings.")
