"""The secret key, and the secrets encrypted with it (Contract platform 3.3, security T9, T13)."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from queryserver.errors.base import ConfigurationError
from queryserver.identity.keys import AesSealer, Keyring, SecretKey, load_keyring, require_known_key
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.loader import load_settings
from queryserver.platform.settings.tree import contradictions

FIRST = SecretKey.derive(SecretStr("the first secret of this deployment, long"))
SECOND = SecretKey.derive(SecretStr("the second secret of this deployment, long"))


class MemoryFacts:
    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    async def keep(self, name: str, value: str) -> str:
        return self.kept.setdefault(name, value)


def test_each_purpose_has_its_own_key() -> None:
    assert len({key for one in (FIRST, SECOND) for key in (one.signing, one.sealing, one.comparing)}) == 6
    assert FIRST.id not in FIRST.signing.hex() + FIRST.sealing.hex()
    assert "secret" not in repr(FIRST)
    assert FIRST.signing.hex() not in repr(FIRST)


@pytest.mark.platform(27)
@pytest.mark.security("T13")
def test_missing_key_is_created_once_and_kept_private(tmp_path: Path) -> None:
    desktop = DesktopSettings(data_dir=tmp_path / "state" / "data")
    first = load_keyring(desktop)
    assert load_keyring(desktop) == first
    file = desktop.data_dir / "secret_key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert desktop.data_dir.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in desktop.data_dir.iterdir()] == ["secret_key"]


@pytest.mark.platform(25)
def test_processes_starting_together_agree_on_the_key(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from queryserver.identity.keys import load_keyring\n"
        "from queryserver.platform.settings.desktop import DesktopSettings\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(load_keyring(DesktopSettings(data_dir=pathlib.Path(sys.argv[1]))).present.fingerprint)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    fingerprints = {process.communicate("go\n", timeout=60)[0] for process in started}
    assert len(fingerprints) == 1


@pytest.mark.platform(27)
@pytest.mark.security("T13")
@pytest.mark.parametrize("content", ["", "short", "changeme" * 8, "a" * 64])
def test_bad_key_file_prevents_the_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "secret_key").write_text(content)
    with pytest.raises(ConfigurationError, match=r"desktop\.secret_key"):
        load_keyring(DesktopSettings(data_dir=tmp_path))


GOOD = "Zr8#a-former-key-of-this-deployment"


@pytest.mark.platform(27)
@pytest.mark.security("T13")
@pytest.mark.parametrize("bad", ["", "planted-short", "planted-changeme" * 8, "a" * 64])
def test_bad_former_key_is_named_by_number_and_prevents_the_start(tmp_path: Path, bad: str) -> None:
    keys = (SecretStr(GOOD), SecretStr(bad))
    with pytest.raises(ConfigurationError) as refused:
        load_keyring(DesktopSettings(data_dir=tmp_path, secret_key=SecretStr("short"), secret_key_fallbacks=keys))
    own, former = refused.value.problems
    assert own.startswith("desktop.secret_key: must have")
    assert former.startswith("desktop.secret_key_fallbacks: Entry 2 ")
    assert "planted" not in former


@pytest.mark.platform(27)
@pytest.mark.security("T13")
def test_bad_former_keys_are_reported_as_settings_problems(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text(f'[desktop]\nsecret_key_fallbacks = ["planted-1", "{GOOD}", "planted-3"]')
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file, {})
    short = "must have at least 32 characters."
    assert refused.value.problems == [f"desktop.secret_key_fallbacks: Entry 1 {short} Entry 3 {short}"]


def test_former_key_in_a_json_list_may_contain_commas() -> None:
    key = f"{GOOD},and,more"
    settings = load_settings(None, {"QUERYSERVER__DESKTOP__SECRET_KEY_FALLBACKS": f'["{key}"]'})
    assert [one.get_secret_value() for one in settings.desktop.secret_key_fallbacks] == [key]
    assert list(contradictions(settings, {})) == []


@pytest.mark.platform(26)
async def test_database_accepts_only_the_key_of_its_first_use() -> None:
    facts = MemoryFacts()
    await require_known_key(Keyring(FIRST), facts)
    await require_known_key(Keyring(FIRST), facts)
    await require_known_key(Keyring(SECOND, (FIRST,)), facts)
    with pytest.raises(ConfigurationError, match=r"secret_key_fallbacks"):
        await require_known_key(Keyring(SECOND), facts)
    assert FIRST.signing.hex() not in str(facts.kept)


@pytest.mark.security("T9")
def test_sealed_data_can_be_opened_and_never_repeats() -> None:
    sealer = AesSealer(Keyring(FIRST))
    one, other = sealer.seal(b"password"), sealer.seal(b"password")
    assert one != other
    assert b"password" not in one
    assert sealer.unseal(one) == sealer.unseal(other) == b"password"


@pytest.mark.security("T9")
def test_altered_or_foreign_seal_is_rejected() -> None:
    sealer = AesSealer(Keyring(FIRST))
    sealed = sealer.seal(b"password")
    changed = [sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :] for place in range(len(sealed))]
    for broken in (*changed, sealed[:10], sealed[:20], b"", AesSealer(Keyring(SECOND)).seal(b"password")):
        with pytest.raises(ValueError, match="encrypted"):
            sealer.unseal(broken)


@pytest.mark.security("T9")
def test_digests_compare_contents_under_one_key_only() -> None:
    digest = AesSealer(Keyring(FIRST)).digest
    assert digest(b"4711") == AesSealer(Keyring(FIRST, (SECOND,))).digest(b"4711")
    assert len({digest(b"4711"), digest(b"4712"), AesSealer(Keyring(SECOND, (FIRST,))).digest(b"4711")}) == 3
    assert len(digest(b"4711")) == 16


@pytest.mark.security("T9")
def test_former_key_still_opens_its_seals() -> None:
    sealed = AesSealer(Keyring(FIRST)).seal(b"password")
    assert AesSealer(Keyring(SECOND, (FIRST,))).unseal(sealed) == b"password"
