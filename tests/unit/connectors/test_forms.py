"""The options of connector types for forms, derived from the option models (Contract platform 5.1)."""

from typing import Annotated

import pytest

from queryserver.connectors import forms, options
from queryserver.connectors.forms import FormOption, OptionKind, form_options
from queryserver.connectors.options import FormSection
from queryserver.connectors.types import TYPES_BY_PAIR, with_defaults


class _Example(options.SqliteOptions):
    path: options.Text = ":memory:"
    read_only: Annotated[options.Flag, FormSection.ADVANCED] = True
    """Whether the example is read-only."""


def by_name(dialect: str, interface: str) -> dict[str, FormOption]:
    return {one.name: one for one in form_options(TYPES_BY_PAIR[dialect, interface])}


@pytest.mark.platform(158)
def test_annotation_and_docstring_of_a_model_determine_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_MODELS", {"sqlite": _Example})
    found = by_name("sqlite", "sqlite")
    assert found["read_only"].description == "Whether the example is read-only."
    assert found["read_only"].section is FormSection.ADVANCED
    assert found["path"].description.startswith("Database file below")


def test_kinds_follow_the_types_of_options() -> None:
    hive = by_name("hive", "hiveserver2")
    kinds = {"server_host": "text", "server_port": "integer", "password": "secret", "ssl_ca": "multiline"}
    kinds |= {"use_ssl": "boolean", "transport_mode": "choice", "read_only": "boolean", "retry": "choice"}
    assert {name: hive[name].kind for name in kinds} == kinds
    assert hive["server_host"].required
    assert hive["server_port"] == FormOption(
        "server_port",
        OptionKind.INTEGER,
        FormSection.MAIN,
        "Port for hosts that are listed without a port; 21050 for impala.",
        10000,
        minimum=1,
        maximum=65535,
    )


def test_only_driver_urls_are_of_the_kind_url() -> None:
    assert by_name("postgresql", "sqlalchemy")["url"].kind is OptionKind.URL
    assert by_name("trino", "trino")["url"].kind is OptionKind.TEXT
    assert by_name("atlas", "rest")["url"].kind is OptionKind.TEXT


def test_settings_of_the_same_name_are_options_once() -> None:
    names = [one.name for one in form_options(TYPES_BY_PAIR["duckdb", "duckdb"])]
    assert names.count("read_only") == 1


def test_options_with_one_permitted_value_are_unused() -> None:
    found = by_name("postgresql", "sqlalchemy")
    assert {name for name, one in found.items() if one.section is FormSection.UNUSED} == {"has_ssh", "ssh_server_host"}


def test_defaults_are_those_of_the_row() -> None:
    row = with_defaults(TYPES_BY_PAIR["impala", "hiveserver2"], {"query_timeout_s": 77})
    assert {one.name: one.default for one in form_options(row)}["query_timeout_s"] == 77
