"""Describes the settings of connector types for forms, as derived from the option models (Contract platform 5.1)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from queryserver.connectors import options
from queryserver.connectors.model import SettingValue
from queryserver.connectors.options import FormSection
from queryserver.connectors.secrets import is_secret
from queryserver.connectors.types import GENERAL_CHOICES, GENERAL_MAXIMA, ConnectorType
from queryserver.connectors.urls import UrlOptions
from queryserver.platform.settings.editor import GeneralSettings
from queryserver.platform.settings.sections import attribute_docstrings, descriptions


class OptionKind(StrEnum):
    """The kinds of fields."""

    TEXT = "text"
    MULTILINE = "multiline"
    URL = "url"
    """A driver URL, which may contain a login."""
    SECRET = "secret"  # noqa: S105 the name of a kind
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class FormOption:
    """A setting of a connector type, as shown in forms."""

    name: str
    kind: OptionKind
    section: FormSection
    description: str
    """One line with code in backticks; empty for types that this server cannot run."""
    default: SettingValue | None
    """The value of a connector without this setting; None: that of the server's settings, or none."""
    required: bool = False
    choices: Sequence[str] = ()
    minimum: int | None = None
    maximum: int | None = None


_MODELS: Mapping[str, type[options.Options]] = MappingProxyType(
    {
        "duckdb": options.DuckdbOptions,
        "phoenix": options.PhoenixOptions,
        "sqlalchemy": UrlOptions,
        "sqlite": options.SqliteOptions,
        "trino": options.TrinoOptions,
    }
)
"""Option models by interface, for interfaces with one model."""
_DIALECT_MODELS: Mapping[tuple[str, str], type[options.Options]] = MappingProxyType(
    {
        **{(dialect, "hiveserver2"): model for dialect, model in options.HS2_OPTIONS.items()},
        ("atlas", "rest"): options.AtlasOptions,
        ("hdfs", "rest"): options.HdfsOptions,
    }
)


def form_options(row: ConnectorType) -> Sequence[FormOption]:
    """Return the type's own settings in listing order, and the general settings if it accepts statements.

    `row` has the defaults. The first call for a model reads its source and blocks.
    """
    model = _DIALECT_MODELS.get((row.dialect, row.interface)) or _MODELS.get(row.interface)
    fields = {field.alias or name: (name, field) for name, field in model.model_fields.items()} if model else {}
    texts = option_texts(model) if model else {}
    found = list[FormOption]()
    for setting, default in row.settings.items():
        name, field = fields.get(setting, (setting, None))
        if field is None:
            found.append(FormOption(setting, _kind(setting, default), FormSection.MAIN, "", default))
        else:
            found.append(_option(setting, field, texts.get(name, ""), default))
    return [*found, *(_general(row) if row.takes_statements else ())]


@cache
def option_texts(model: type[options.Options]) -> Mapping[str, str]:
    """Return the docstrings of the model's options by attribute, with those of its bases."""
    owners = [owner for owner in reversed(model.__mro__) if issubclass(owner, options.Options)]
    return {name: text for owner in owners for name, text in attribute_docstrings(owner).items()}


def _option(setting: str, field: FieldInfo, text: str, default: SettingValue) -> FormOption:
    readers = [one.func for one in field.metadata if isinstance(one, BeforeValidator)]
    words = next((one.words for one in readers if isinstance(one, options.Choice)), ())
    number = next((one for one in readers if isinstance(one, options.WholeNumber)), None)
    kind = _kind(setting, default)
    if words:
        kind = OptionKind.CHOICE
    elif options.MULTILINE in field.metadata:
        kind = OptionKind.MULTILINE
    elif kind is OptionKind.TEXT and field.annotation is UrlOptions.model_fields["url"].annotation:
        kind = OptionKind.URL
    return FormOption(
        setting,
        kind,
        next((one for one in field.metadata if isinstance(one, FormSection)), FormSection.MAIN),
        text,
        default,
        required=field.is_required(),
        choices=words,
        minimum=number.least if number else None,
        maximum=number.most if number else None,
    )


def _kind(setting: str, sample: SettingValue | None) -> OptionKind:
    if isinstance(sample, bool):
        return OptionKind.BOOLEAN
    if isinstance(sample, int):
        return OptionKind.INTEGER
    return OptionKind.SECRET if is_secret(setting) else OptionKind.TEXT


def _general(row: ConnectorType) -> Iterator[FormOption]:
    texts = descriptions(GeneralSettings)
    for name, field in GeneralSettings.model_fields.items():
        if name in row.settings:
            continue
        words, maximum = GENERAL_CHOICES.get(name, ()), GENERAL_MAXIMA.get(name)
        kind = OptionKind.CHOICE if words else OptionKind.INTEGER if maximum else OptionKind.BOOLEAN
        yield FormOption(
            name,
            kind,
            FormSection.GENERAL,
            texts[name],
            # 0 switches reuse off, as the absence of the setting does, and cannot be stored.
            field.default or (False if field.default is False else None),
            choices=words,
            minimum=1 if maximum else None,
            maximum=maximum,
        )
