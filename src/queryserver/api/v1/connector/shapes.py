"""Connectors and their types as the wire has them (Contract platform 5.1)."""

from collections.abc import Iterable, Mapping

from queryserver.api.answers import moment
from queryserver.domain.connector_instances import SettingValue
from queryserver.domain.connector_types import Category, Flags
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import ConnectorFields
from queryserver.services.connector_instances import GivenConnector, ShownInstance, ShownType, Template


def given(fields: ConnectorFields) -> GivenConnector:
    """What a call gave."""
    return GivenConnector(
        id=fields.id,
        nice_name=fields.nice_name,
        dialect=fields.dialect,
        interface=fields.interface,
        description=fields.description,
        settings=fields.setting_values,
        groups=fields.groups,
        version=fields.version,
    )


def type_groups(types: Iterable[ShownType]) -> list[wire.ConnectorTypeGroup]:
    """Six groups, also when empty."""
    every = list(types)
    return [
        wire.ConnectorTypeGroup(
            category=category,
            category_name=category.label,
            description="",
            values=[_type(one) for one in every if one.row.category is category],
        )
        for category in Category
    ]


def categories() -> list[wire.ConnectorCategoryEntry]:
    """All six, in their order."""
    return [wire.ConnectorCategoryEntry(name=one.label, type=one, description="") for one in Category]


def groups(instances: Iterable[ShownInstance]) -> list[wire.ConnectorGroup]:
    """Six groups, also when empty."""
    every = list(instances)
    return [
        wire.ConnectorGroup(
            category=category,
            category_name=category.label,
            description="",
            values=[connector(one) for one in every if one.category is category],
        )
        for category in Category
    ]


def connector(shown: ShownInstance) -> wire.Connector:
    """An instance."""
    instance = shown.instance
    return wire.Connector(
        id=str(instance.id),
        name=str(instance.id),
        nice_name=instance.nice_name,
        dialect=instance.dialect,
        interface=instance.interface,
        category=shown.category,
        description=shown.description,
        settings=_settings(shown.settings),
        dialect_properties=_flags(shown.flags),
        is_runnable=shown.is_runnable,
        version=instance.version,
        groups=list(instance.groups) if shown.shows_groups else None,
        last_modified=moment(instance.last_modified) or "",
    )


def template(found: Template) -> wire.ConnectorTemplate:
    """A type to be named and sent to update."""
    row = found.type.row
    return wire.ConnectorTemplate(
        dialect=row.dialect,
        interface=row.interface,
        category=row.category,
        nice_name=found.nice_name,
        description=found.description,
        name="",
        settings=_settings(found.settings),
        properties=_flags(row.flags),
        is_runnable=found.type.is_runnable,
        dialect_properties=_flags(row.flags),
        id=None,
    )


def _type(shown: ShownType) -> wire.ConnectorType:
    row = shown.row
    return wire.ConnectorType(
        dialect=row.dialect,
        interface=row.interface,
        category=row.category,
        nice_name=row.nice_name,
        description=row.description,
        name=row.dialect,
        settings=_settings(row.defaults),
        properties=_flags(row.flags),
        is_runnable=shown.is_runnable,
    )


def _settings(values: Mapping[str, SettingValue]) -> list[wire.ConnectorSetting]:
    return [wire.ConnectorSetting(name=name, value=value) for name, value in values.items()]


def _flags(flags: Flags) -> wire.DialectProperties:
    return wire.DialectProperties.model_validate(flags)
