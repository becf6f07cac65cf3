"""Applications whose data sources each test configures."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Api, open_api

from queryserver.platform.settings.loader import load_settings

Opener = Callable[..., AbstractAsyncContextManager[Api]]

SECRET_KEY = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"


@pytest.fixture
def open_with(tmp_path: Path, database_dsn: str) -> Opener:
    """A function that opens the application with the given TOML settings and with the settings that every server
    needs.
    """

    def opener(toml: str = "", **environ: Any) -> AbstractAsyncContextManager[Api]:
        file = tmp_path / "queryserver.toml"
        file.write_text(toml)
        needed = {
            "QUERYSERVER__DESKTOP__DATABASE__URL": database_dsn,
            "QUERYSERVER__DESKTOP__SECRET_KEY": SECRET_KEY,
            "QUERYSERVER__DESKTOP__DATA_DIR": str(tmp_path / "data"),
            "QUERYSERVER__DESKTOP__SHUTDOWN_GRACE_S": "0",
        }
        return open_api(load_settings(file, {**needed, **environ}))

    return opener
