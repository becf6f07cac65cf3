"""`config check` warns about proxies that third-party drivers would use (Contract platform 5.11: Hosts)."""

from pathlib import Path

import pytest

from queryserver.administration.configuration_check import check_settings
from queryserver.connectors.engine_builders import proxied_drivers
from queryserver.platform.settings.tree import Level, Settings, SettingsFinding

pytestmark = pytest.mark.security("T8")

_KEY = "desktop.connector_policy.allowed_drivers"
_PROXY = {"HTTPS_PROXY": "http://planted:planted-secret@proxy.example:3128"}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that declares SQLAlchemy dialects; its modules do not exist."""
    made = tmp_path / "qs_dialects-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: qs-dialects\nVersion: 1\n")
    names = ["qsfar", "qsfar.rest", "trino", "mysql.qsfar"]
    text = "".join(f"{name} = no_such_module:Dialect\n" for name in names)
    (made / "entry_points.txt").write_text(f"[sqlalchemy.dialects]\n{text}")
    monkeypatch.syspath_prepend(tmp_path)


def allowing(*drivers: str) -> Settings:
    return Settings.model_validate({"desktop": {"connector_policy": {"allowed_drivers": drivers}}})


def drivers_told(settings: Settings, **environ: str) -> list[str]:
    """Return the drivers that the warnings name."""
    return [one.text.removeprefix("allows ").partition(":")[0] for one in proxied_drivers(settings, environ)]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "All_Proxy"])
def test_installed_allowed_drivers_are_reported(name: str) -> None:
    settings = allowing("trino", "QSFAR+rest", "qsfar", "mysql+qsfar", "oracle", "qs-nowhere")
    assert drivers_told(settings, **{name: "http://proxy.example"}) == ["QSFAR+rest, qsfar"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HTTP_PROXY": "", "no_proxy": "here.example", "FTP_PROXY": "http://proxy.example"},
        {"http_proxy": "http://proxy.example", "NO_PROXY": "*"},
    ],
)
def test_no_proxy_means_no_warning(environ: dict[str, str]) -> None:
    assert drivers_told(allowing("qsfar"), **environ) == []


@pytest.mark.security("T9")
def test_proxy_address_is_not_reported() -> None:
    (found,) = proxied_drivers(allowing("qsfar"), _PROXY)
    assert (found.level, found.key) == (Level.WARNING, _KEY)
    assert "planted" not in str(found)
    assert "proxy.example" not in str(found)


async def test_settings_check_includes_the_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def found(settings: Settings) -> list[SettingsFinding]:
        return [one for one in await check_settings(settings, offline=True) if one.key == _KEY]

    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    for name, value in _PROXY.items():
        monkeypatch.setenv(name, value)
    assert await found(allowing("qsfar")) == list(proxied_drivers(allowing("qsfar"), _PROXY))
    assert await found(allowing("trino")) == []
