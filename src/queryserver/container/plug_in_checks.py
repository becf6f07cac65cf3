"""Whether what the settings name as login back ends and authenticators can be loaded."""

from collections.abc import Sequence

from queryserver.auth.plug_ins import PlugInThreads, is_import_path, open_plug_in
from queryserver.container.callers import BUILT_IN
from queryserver.container.logins import BACKENDS
from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.findings import Finding
from queryserver.settings import Settings


async def unloadable(settings: Settings) -> Sequence[Finding]:
    """Classes of others are built and closed again, as they are when a server starts."""
    auth = settings.desktop.auth
    found: list[Finding] = []
    threads = PlugInThreads()
    try:
        for key, names, built_in, method in (
            ("desktop.auth.backend", auth.backend, BACKENDS.keys(), "login"),
            ("desktop.auth.api_auth", auth.authenticators, BUILT_IN.keys(), "authenticate"),
        ):
            for name in names:
                if name not in built_in:
                    found += await _problems_of(key, name, method, settings, threads)
    finally:
        threads.close()
    return found


async def _problems_of(
    key: str, name: str, method: str, settings: Settings, threads: PlugInThreads
) -> Sequence[Finding]:
    if not is_import_path(name):
        return [Finding.error(key, f"{name} cannot be loaded: it is neither built in nor an import path.")]
    try:
        async with open_plug_in(key, name, settings=settings, threads=threads, method=method):
            return []
    except ConfigurationError as error:
        return [Finding.of_problem(problem) for problem in error.problems]
