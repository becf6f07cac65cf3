"""Settings from TOML files, environment variables and overrides (Contract platform 11)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.loader import load_settings
from queryserver.platform.settings.sections import LocalResults, S3Results
from queryserver.platform.settings.tree import SettingOrigin, Settings

KEY = "Zr8#a-key-of-this-deployment-long"

Reader = Callable[..., Settings]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Return a function that reads settings from TOML text, environment variables and overrides."""

    def reader(
        toml: str = "", environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Settings:
        file = tmp_path / "queryserver.toml"
        file.write_text(toml)
        return load_settings(file, environ or {}, overrides=overrides)

    return reader


def problems(read: Reader, toml: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read(toml, environ)
    return caught.value.problems


def test_contract_defaults_apply_without_a_file(read: Reader) -> None:
    settings = read()
    assert (settings.desktop.http_host, settings.desktop.http_port) == ("127.0.0.1", 8888)
    assert settings.desktop.auth.access_token_lifetime_s == 86400
    assert settings.desktop.auth.refresh_token_lifetime_s == 7 * 86400
    assert settings.desktop.auth.authenticators == ("jwt", "api_token")
    assert (settings.editor.default_limit, settings.editor.result_max_rows) == (5000, 1_000_000)
    assert settings.desktop.database.dsn is None
    assert settings.results_dir == settings.desktop.data_dir / "results"


@pytest.mark.platform(53)
def test_unknown_keys_and_wrong_types_are_reported_with_full_key(read: Reader) -> None:
    found = problems(read, 'color = 1\n[desktop.auth.jwt]\nisuer = "x"\n[desktop]\nhttp_port = "8888"\nworkers = true')
    assert set(found) == {
        "color: is not a known key.",
        "desktop.auth.jwt.isuer: is not a known key; did you mean issuer?",
        "desktop.http_port: must be a valid integer.",
        "desktop.workers: must be a valid integer.",
    }


@pytest.mark.platform(49)
def test_all_kinds_of_mistakes_are_reported_together(read: Reader) -> None:
    found = problems(
        read,
        """
        [desktop]
        secret_key = "short"
        cors_enabled = true
        cors_allowed_origins = "*"
        [desktop.database]
        pool_min = 20
        port = 70000
        [notebook.interpreters.hive]
        dialect = "hive"
        [editor]
        nonsense = 1
        """,
    )
    assert [line.partition(":")[0] for line in found] == [
        "editor.nonsense",
        "desktop.database.port",
        "notebook.interpreters.hive.interface",
        "desktop.secret_key",
        "desktop.cors_allowed_origins",
        "desktop.database.pool_min",
    ]


@pytest.mark.platform(50)
@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("QUERYSERVER__DESKTOP__HTTP_PORT", "9000", 9000),
        ("queryserver__desktop__http_port", "9000", 9000),
        ("QueryServer__Desktop__Http_Port", "9000", 9000),
        ("QUERYSERVER__DESKTOP", '{"http_port": 9000}', 9000),
    ],
)
def test_environment_variable_in_any_case_overrides_file(read: Reader, name: str, text: str, value: int) -> None:
    settings = read("[desktop]\nhttp_port = 1\nhost_label = 'kept'", {name: text})
    assert (settings.desktop.http_port, settings.desktop.host_label) == (value, "kept")


@pytest.mark.platform(50)
def test_environment_variables_can_set_every_level_and_type(read: Reader) -> None:
    settings = read(
        "[notebook.interpreters.Sales]\ninterface = 'sqlalchemy'\noptions = {url = 'a', x = 1}",
        {
            "QUERYSERVER__DESKTOP__AUTH__JWT__ISSUER": "me",
            "QUERYSERVER__EDITOR__SAMPLE_VIEWS": "off",
            "QUERYSERVER__DESKTOP__ALLOWED_HOSTS": "a.example, b.example",
            "QUERYSERVER__DESKTOP__TRUSTED_PROXIES": '["10.0.0.0/8"]',
            "QUERYSERVER__NOTEBOOK__INTERPRETERS__SALES__OPTIONS__URL": "b",
            "QUERYSERVER__NOTEBOOK__INTERPRETERS__SALES__STATEMENT_TIMEOUT_S": "5",
            "QUERYSERVER__NOTEBOOK__INTERPRETERS__SALES__GROUPS": '["analysts"]',
            "QUERYSERVER__NOTEBOOK__INTERPRETERS": '{"duck": {"interface": "duckdb"}}',
        },
    )
    sales = settings.notebook.interpreters["Sales"]
    assert settings.desktop.auth.jwt.issuer == "me"
    assert settings.editor.sample_views is False
    assert settings.desktop.allowed_hosts == ("a.example", "b.example")
    assert [str(network) for network in settings.desktop.trusted_proxies] == ["10.0.0.0/8"]
    assert (sales.options, sales.statement_timeout_s, sales.groups) == ({"url": "b", "x": 1}, 5, ("analysts",))
    assert settings.notebook.interpreters["duck"].interface == "duckdb"


def test_invalid_environment_value_is_reported_like_file_value(read: Reader) -> None:
    assert problems(read, environ={"QUERYSERVER__DESKTOP__WORKERS": "many"}) == [
        "desktop.workers: must be a valid integer."
    ]
    assert problems(read, environ={"QUERYSERVER__DESKTOP__NOPE": "1"}) == ["desktop.nope: is not a known key."]


@pytest.mark.platform(50)
def test_secrets_are_read_from_file_or_command(read: Reader, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text(f"{KEY}\n")
    settings = read(
        f"[desktop]\nsecret_key_file = '{secret}'\n[desktop.smtp]\npassword_script = 'echo geheim'\n"
        f"[notebook.interpreters.a]\ninterface = 'sqlalchemy'\noptions = {{url_file = '{secret}'}}"
    )
    assert settings.desktop.secret_key.get_secret_value() == KEY
    assert settings.desktop.smtp.password.get_secret_value() == "geheim"
    assert settings.notebook.interpreters["a"].options == {"url": KEY}


def test_environment_secret_overrides_file_variant_in_settings_file(read: Reader) -> None:
    settings = read("[desktop]\nsecret_key_file = '/nowhere'", {"QUERYSERVER__DESKTOP__SECRET_KEY": KEY})
    assert settings.desktop.secret_key.get_secret_value() == KEY


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("secret_key_file = '/nowhere'", "its file /nowhere cannot be read: No such file or directory."),
        ("secret_key_script = 'false'", "its script exited with code 1."),
        ("secret_key_script = '/nowhere/x'", "its script cannot be run: No such file or directory."),
        ("secret_key = 'a'\nsecret_key_file = 'b'", "is set more than once, including its forms _file and _script."),
    ],
)
def test_unreadable_or_duplicate_secret_source_is_a_problem(read: Reader, key: str, complaint: str) -> None:
    assert f"desktop.secret_key: {complaint}" in problems(read, f"[desktop]\n{key}")


@pytest.mark.platform(51)
@pytest.mark.parametrize(
    "url", ["sqlite:///x.db", "sqlite+aiosqlite://", "mysql://u:geheim@h/d", "postgresql+asyncpg://h/d", "x"]
)
def test_only_postgresql_is_accepted_as_service_database(read: Reader, url: str) -> None:
    [problem] = problems(read, f"[desktop.database]\nurl = '{url}'")
    assert problem.startswith("desktop.database.url: must be a PostgreSQL address")
    assert "geheim" not in problem


def test_database_may_be_configured_in_parts(read: Reader) -> None:
    database = "[desktop.database]\nhost = 'db'\nname = 'q s'\nuser = 'u'\npassword = 'p/@'\nsslmode = 'require'"
    assert read(database).desktop.database.dsn == "postgresql://u:p%2F%40@/q%20s?host=db&port=5432&sslmode=require"
    assert "desktop.database.url" in problems(read, f"{database}\nurl = 'postgresql://h/d'")[0]


@pytest.mark.platform(27)
@pytest.mark.security("T13")
@pytest.mark.parametrize(
    "key", ["short", "a" * 64, "django-insecure-0123456789abcdefghijkl", "changeme-changeme-changeme-changeme"]
)
def test_short_or_sample_secret_key_is_refused(read: Reader, key: str) -> None:
    [problem] = problems(read, f"[desktop]\nsecret_key = '{key}'")
    assert problem.startswith("desktop.secret_key: ")
    assert key not in problem


EXTERNAL = "[desktop.auth.jwt]\nkey_server_url = 'https://k'\naudience = 'a'\nissuer = '{}'"
"""External tokens of an issuer."""


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ("[desktop]\nssl_certificate = 'c.pem'", "desktop.ssl_private_key"),
        ("[desktop]\ntime_zone = 'Mars/Phobos'", "desktop.time_zone"),
        ("[desktop]\ntrusted_proxies = 'here'", "desktop.trusted_proxies"),
        ("[desktop.auth]\nforce_username_uppercase = true", "desktop.auth.force_username_uppercase"),
        ("[desktop.auth.jwt]\nkey_server_url = 'https://k'\nissuer = 'i'", "desktop.auth.jwt.audience"),
        ("[metadata.catalog]\napi_url = 'http://atlas.example:21000'", "metadata.catalog.api_url"),
        ("[metadata.catalog]\napi_url = 'https://atlas:x'", "metadata.catalog.api_url"),
        (
            "[desktop.auth.jwt]\nkey_server_url = 'http://k.example'\nissuer = 'i'\naudience = 'a'",
            "desktop.auth.jwt.key_server_url",
        ),
        ("[desktop.auth.oidc]\nclient_id = 'c'", "desktop.auth.oidc.client_id"),
        (f"{EXTERNAL.format('*')}\n[desktop.auth.oidc]\nclient_id = 'c'", "desktop.auth.oidc.client_id"),
        (f"{EXTERNAL.format('http://i.example')}\n[desktop.auth.oidc]\nclient_id = 'c'", "desktop.auth.oidc.client_id"),
        (
            f"{EXTERNAL.format('https://i')}\n[desktop.auth.oidc]\nclient_id = 'c'\nscopes = ['email']",
            "desktop.auth.oidc.scopes",
        ),
        ("[desktop.auth.oidc]\nredirect_url = 'http://sql.example/'", "desktop.auth.oidc.redirect_url"),
        ("[desktop.ldap]\nldap_url = 'ldap://d'\nuse_start_tls = false", "desktop.ldap.use_start_tls"),
        ("[desktop.smtp]\nhost = 'mail.example'\ntls = 'none'", "desktop.smtp.tls"),
        ("[desktop.task_server]\nbeat_enabled = true", "desktop.task_server.beat_enabled"),
        ("[desktop.task_server]\nenabled = true\nheartbeat_s = 11", "desktop.task_server.heartbeat_s"),
        ("[desktop.task_server]\nbroker_url = 'amqp://x'", "desktop.task_server.broker_url"),
        ("[editor]\ndefault_limit = 1\n[notebook]\ndefault_limit = 2", "editor.default_limit"),
        ("[editor]\nresult_max_rows = 10", "editor.default_limit"),
        ("[editor]\nsample_views = true\n[metastore]\nallow_sample_data_from_views = false", "editor.sample_views"),
        ("[notebook.interpreters.7]\ninterface = 'duckdb'", "notebook.interpreters.7"),
        ("desktop = 3", "desktop"),
        ("[desktop.logging]\nredact = ['(']", "desktop.logging.redact"),
    ],
)
def test_contradictory_or_invalid_setting_is_reported(read: Reader, toml: str, key: str) -> None:
    assert [line.partition(": ")[0] for line in problems(read, toml)] == [key]


def test_both_names_of_a_setting_are_equivalent(read: Reader) -> None:
    settings = read("[notebook]\ndefault_limit = 7\n[metastore]\nallow_sample_data_from_views = false")
    assert (settings.editor.default_limit, settings.editor.sample_views) == (7, False)
    assert read("[editor]\ndefault_limit = 8").notebook.default_limit == 8


def test_importer_keys_may_be_uppercase_as_in_the_specification(read: Reader) -> None:
    assert read("[importer]\nMAX_LOCAL_FILE_SIZE_UPLOAD_LIMIT = 5").importer.max_local_file_size_upload_limit == 5


def test_data_source_settings_may_be_given_as_options(read: Reader) -> None:
    table = (
        "[notebook.interpreters.a]\ninterface = 'duckdb'\noptions = {path = 'x', read_only = true, session_idle_s = 5}"
    )
    source = read(table).notebook.interpreters["a"]
    assert (source.options, source.read_only, source.session_idle_s) == ({"path": "x"}, True, 5)


@pytest.mark.platform(111)
def test_result_store_is_parsed_from_json(read: Reader) -> None:
    def stored(value: object) -> object:
        text = value if isinstance(value, str) else json.dumps(value)
        return read(f"[desktop.task_server]\nresult_file_storage = '{text}'").desktop.task_server.result_file_storage

    assert stored("") is None
    assert stored({"backend": "local", "properties": {"location": "/x"}}) == LocalResults(location="/x")
    old = stored({"backend": "storages.backends.s3boto3.S3Boto3Storage", "properties": {"location": "s3a://b/p"}})
    assert isinstance(old, S3Results)


@pytest.mark.platform(111)
@pytest.mark.parametrize("value",
    ["{", "[]", "{}", '{"backend": "ftp"}', '{"backend": "local"}',
    '{"backend": "local", "properties": {"path": "/x"}}'])  # fmt: skip
def test_invalid_result_store_is_a_problem(read: Reader, value: str) -> None:
    [problem] = problems(read, f"[desktop.task_server]\nresult_file_storage = '{value}'")
    assert problem.startswith("desktop.task_server.result_file_storage: ")


def test_every_value_has_its_origin(read: Reader) -> None:
    settings = read(
        "[desktop]\nhost_label = 'x'\nhttp_port = 1", {"QUERYSERVER__DESKTOP__HTTP_PORT": "2"}, {"desktop.workers": 3}
    )
    keys = ["desktop.host_label", "desktop.http_port", "desktop.workers", "desktop.data_dir"]
    assert [settings.origin(key) for key in keys] == [
        SettingOrigin.FILE,
        SettingOrigin.ENVIRONMENT,
        SettingOrigin.COMMAND_LINE,
        SettingOrigin.DEFAULT,
    ]


def test_short_environment_variables_are_read(read: Reader, tmp_path: Path) -> None:
    settings = read(environ={"QUERYSERVER_DATA_DIR": str(tmp_path), "QUERYSERVER_ADMIN_PASSWORD": "geheim-geheim"})
    assert settings.desktop.data_dir == tmp_path
    assert settings.sources.admin_password is not None
    assert settings.sources.admin_password.get_secret_value() == "geheim-geheim"
    assert "geheim" not in repr(settings.sources)


def test_settings_file_is_found_in_working_directory_or_by_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queryserver.toml").write_text("[desktop]\nhost_label = 'here'")
    (tmp_path / "other.toml").write_text("[desktop]\nhost_label = 'other'")
    assert load_settings(None, {}).desktop.host_label == "here"
    assert load_settings(None, {"QUERYSERVER_CONFIG": "other.toml"}).desktop.host_label == "other"
    with pytest.raises(ConfigurationError, match=r"missing\.toml: cannot be read"):
        load_settings(Path("missing.toml"), {})
    (tmp_path / "bad.toml").write_text("[desktop\n")
    with pytest.raises(ConfigurationError, match=r"bad\.toml: is not valid TOML"):
        load_settings(Path("bad.toml"), {})
