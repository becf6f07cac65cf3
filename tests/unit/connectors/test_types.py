"""The connector types, compared with the table of Contract platform 5.10 value by value.

A row consists of number, dialect, interface, category, name, description, quote, flags, run mode and settings.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import raises_code

from queryserver.connectors.options import (
    HS2_OPTIONS,
    AtlasOptions,
    DuckdbOptions,
    HdfsOptions,
    Options,
    PhoenixOptions,
    SqliteOptions,
    TrinoOptions,
    listed_options,
)
from queryserver.connectors.types import (
    TYPES,
    TYPES_BY_PAIR,
    Category,
    RunSupport,
    complete_settings,
    flags_of,
    with_defaults,
)
from queryserver.errors.statements import ConnectorRefused
from queryserver.platform.settings.editor import GeneralSettings

_FLAGS = [
    "is_sql", "has_catalog", "has_database", "has_table", "has_live_queries", "has_optimizer_risks",
    "has_optimizer_values", "has_auto_limit", "has_reference_language", "has_reference_functions", "has_use_statement",
]  # fmt: skip
_SETTING = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^;]+)')

_OF_HIVE = {
    "auth_mechanism": "", "transport_mode": "binary", "http_path": "cliservice", "username": "", "password": "",
    "impersonation_enabled": True, "kerberos_service_name": "hive", "kerberos_host": "", "use_ssl": False,
    "ssl_validate": True, "ssl_ca": "", "allow_insecure_http": False, "database": "default", "connect_timeout_s": 10,
    "query_timeout_s": 0, "session_timeout_s": 0, "close_queries": False, "session_conf": "", "is_llap": False,
}  # fmt: skip
_OF_IMPALA = {
    **_OF_HIVE,
    "impersonation_enabled": False,
    "kerberos_service_name": "impala",
    "query_timeout_s": 600,
    "session_timeout_s": 3600,
}
_FURTHER: dict[int, dict[str, Any]] = {
    13: {"statement_tags": True},
    14: {"statement_tags": True}, 27: {"statement_tags": True},
    1: _OF_HIVE, 3: _OF_IMPALA, 9: {**_OF_HIVE, "impersonation_enabled": False}, 12: _OF_HIVE,
    44: {"ssl_ca": "", "session_properties": "", "client_tags": ""}, 45: {"ssl_ca": "", "serialization": "PROTOBUF"},
}  # fmt: skip
"""The optional settings of section 5.11 with their defaults, which follow the settings in the table."""


def test_no_connector_type_has_an_optimizer_flag() -> None:
    assert not [one for one in TYPES if one.flags.get("has_optimizer_risks") or one.flags.get("has_optimizer_values")]


def rows() -> list[list[str]]:
    contract = Path("docs/contract/platform.md").read_text("utf-8").partition("### 5.10 ")[2].partition("### 5.11 ")[0]
    lines = [line.strip("| ") for line in contract.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def settings_of(cell: str) -> list[tuple[str, Any]]:
    return [] if cell == "(none)" else [(name, json.loads(value)) for name, value in _SETTING.findall(cell)]


def flags_in(quote: str, letters: str) -> dict[str, Any]:
    if letters == "{}":
        return {}
    quotes = {"b": "`", "d": '"'}
    named = dict(zip(_FLAGS, (letter == "T" for letter in letters), strict=True))
    return {**named, "sql_identifier_quote": quotes[quote], "sql_identifier_comment_single": "--"}


@pytest.mark.platform(62)
def test_table_has_47_rows_in_catalog_order() -> None:
    assert [int(row[0]) for row in rows()] == list(range(1, 48))
    assert [(row[1], row[2]) for row in rows()] == [(one.dialect, one.interface) for one in TYPES]


@pytest.mark.platform(62)
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[1]}-{row[2]}")
def test_type_equals_its_row(row: list[str]) -> None:
    number, dialect, interface, category, name, description, quote, letters, runs, settings = row
    found = TYPES_BY_PAIR[dialect, interface]
    assert found.category == category
    assert (found.nice_name, found.description) == (name, "" if description == "-" else description)
    assert found.runs == runs.partition(",")[0]
    assert dict(found.flags) == flags_in(quote, letters)
    listed = settings_of(settings)
    further = [(key, value) for key, value in _FURTHER.get(int(number), {}).items() if key not in dict(listed)]
    assert list(found.settings.items()) == [*listed, *further]
    assert [type(value) for value in found.settings.values()] == [type(value) for _, value in [*listed, *further]]


@pytest.mark.parametrize(
    ("pair", "model"),
    [
        (("hdfs", "rest"), HdfsOptions),
        (("atlas", "rest"), AtlasOptions),
        (("trino", "trino"), TrinoOptions),
        (("phoenix", "phoenix"), PhoenixOptions),
        (("duckdb", "duckdb"), DuckdbOptions),
        (("sqlite", "sqlite"), SqliteOptions),
        *(((dialect, "hiveserver2"), model) for dialect, model in HS2_OPTIONS.items()),
    ],
)
def test_catalog_defaults_equal_option_defaults(pair: tuple[str, str], model: type[Options]) -> None:
    listed = listed_options(model)
    tunnel = {"has_ssh": False, "ssh_server_host": "127.0.0.1"}
    assert {**tunnel, **TYPES_BY_PAIR[pair].settings} == {**tunnel, **listed}


def test_unlisted_pair_has_the_flags_of_its_dialect_or_plain_sql() -> None:
    assert flags_of("postgresql", "fake") == flags_of("postgresql", "sqlalchemy")
    assert flags_of("exotic", "sqlalchemy")["is_sql"]
    assert len(flags_of("exotic", "sqlalchemy")) == 13
    assert flags_of("pyspark", "livy") == {}


def test_categories_have_their_names() -> None:
    assert [one.label for one in Category] == ["Editor", "Browsers", "Catalogs", "Optimizers", "Schedulers", "Plugins"]


def complete(dialect: str, interface: str, **given: object) -> dict[str, Any]:
    return complete_settings(TYPES_BY_PAIR[dialect, interface], given)


def test_missing_settings_take_the_defaults_of_the_type() -> None:
    assert complete("trino", "trino") == TYPES_BY_PAIR["trino", "trino"].settings
    assert complete("trino", "trino", url="https://h", catalog=None)["url"] == "https://h"


def test_custom_defaults_apply_to_listed_settings_only() -> None:
    others = {"query_timeout_s": 5, "close_queries": True}
    hive, plain = TYPES_BY_PAIR["hive", "hiveserver2"], TYPES_BY_PAIR["hive", "sqlalchemy"]
    changed = with_defaults(hive, others)
    assert list(changed.settings) == list(hive.settings)
    assert complete_settings(changed, {"query_timeout_s": "7"}) == {**hive.settings, **others, "query_timeout_s": 7}
    assert with_defaults(plain, others) == plain


def test_text_booleans_and_integers_are_converted() -> None:
    found = complete("hive", "hiveserver2", server_port=" 10001 ", use_sasl="No", is_llap=1, connect_timeout_s=7.0)
    assert (found["server_port"], found["use_sasl"]) == (10001, False)
    assert found["is_llap"] is True
    assert type(found["connect_timeout_s"]) is int


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("server_port", "x", "Must be an integer."),
        ("server_port", True, "Must be an integer."),
        ("server_port", 1.5, "Must be an integer."),
        ("server_port", 10**30, "Must be an integer."),
        ("server_port", [], "Must be an integer."),
        ("use_sasl", "maybe", "Must be true or false."),
        ("use_sasl", {}, "Must be true or false."),
        ("username", 5, "Must be a string."),
        ("username", "a\0b", "Must not contain control characters."),
        ("username", "a\r\nb", "Must not contain control characters."),
        ("username", "\ud800", "Must not contain control characters."),
        ("username", "a" * 70_000, "Must have at most 65536 characters."),
        ("session_idle_s", 0, "Must be between 1 and 31536000."),
        ("session_idle_s", 10**15, "Must be between 1 and 31536000."),
        ("max_estimated_bytes", 0, "Must be between 1 and 9223372036854775807."),
        ("max_estimated_cost", "x", "Must be an integer."),
        ("retry", "always", "Must be never or read_only."),
        ("retry", True, "Must be a string."),
        ("share_results", "all", "Must be never, users_of_connector or anyone."),
    ],
)
def test_invalid_value_is_reported_by_name_and_never_shown(name: str, value: object, text: str) -> None:
    with pytest.raises(ConnectorRefused) as refused:
        complete("hive", "hiveserver2", **{name: value})
    assert refused.value.errors == {name: [text]}


def test_certificates_may_contain_line_breaks() -> None:
    assert complete("trino", "trino", ssl_ca="-----BEGIN\r\n\tx\n")["ssl_ca"] == "-----BEGIN\r\n\tx\n"


def test_only_runnable_types_accept_general_settings() -> None:
    general = dict.fromkeys(GeneralSettings.model_fields, 1) | {"retry": "read_only", "share_results": "anyone"}
    for row in TYPES:
        if row.runs in {RunSupport.YES, RunSupport.DRIVER}:
            assert general.keys() <= complete_settings(row, general).keys()
            assert "session_idle_s" not in complete_settings(row, {})
        else:
            with raises_code("unknown_setting"):
                complete_settings(row, {"session_idle_s": 5})
