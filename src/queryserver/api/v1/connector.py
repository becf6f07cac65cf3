"""Connectors: the catalogue of types, and stored instances (Contract platform 5)."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Response

from queryserver.api.answers import answer, like, moment
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.connectors.instances import GivenConnector, ShownInstance, ShownType
from queryserver.connectors.model import SettingValue
from queryserver.connectors.types import Category
from queryserver.errors.statements import connector_not_found

router = PathGroup()

Group = TypeVar("Group", wire.ConnectorTypeGroup, wire.ConnectorGroup)


@router.operation("list_connector_types", "get_connectors_types", "post_connectors_types")
async def types(call: Call) -> Response:
    """The types that a connector may have, in six groups."""
    found = await call.services.stored_connectors.types()
    groups = [
        _group(wire.ConnectorTypeGroup, category, [_type(one) for one in found if one.row.category is category])
        for category in Category
    ]
    categories = [wire.ConnectorCategoryEntry(name=one.label, type=one, description="") for one in Category]
    return answer(wire.ConnectorTypeList(connectors=groups, categories=categories, status=0))


@router.operation("list_connectors")
async def instances(call: Call) -> Response:
    """The instances that the caller may use, by ascending id in six groups."""
    found = await call.services.stored_connectors.visible(call.user)
    groups = [
        _group(wire.ConnectorGroup, category, [_connector(one) for one in found if one.category is category])
        for category in Category
    ]
    return answer(wire.ConnectorList(connectors=groups, status=0))


@router.operation("new_connector")
async def new(call: Call, dialect: str, interface: str) -> Response:
    """A type with its defaults, and what was given laid over them; nothing is stored or connected to."""
    fields = await call.read(requests.NewConnectorRequest)
    found = await call.services.stored_connectors.template(dialect, interface, given(fields.connector))
    return answer(wire.ConnectorTemplateResponse(connector=_template(found), status=0))


@router.operation("get_connector")
async def get(call: Call, id: str) -> Response:  # noqa: A002 the path's own name
    """A connector with its settings; secrets are masked."""
    shown = await call.services.stored_connectors.get(call.user, id)
    return answer(wire.ConnectorResponse(**dict(_connector(shown)), status=0))


@router.operation("save_connector")
async def update(call: Call) -> Response:
    """Create without an id, else change; nothing is connected to."""
    fields = await call.read(requests.ConnectorRequest)
    shown, is_new = await call.services.stored_connectors.save(call.user, given(fields.connector))
    return answer(wire.ConnectorUpdateResponse(connector=_connector(shown), saved_as=is_new, status=0))


@router.operation("delete_connector")
async def delete(call: Call) -> Response:
    """History and results of its statements stay; its id is not used again."""
    fields = await call.read(requests.ConnectorIdRequest)
    if fields.connector.id is None:
        raise connector_not_found("(none)")
    deleted = await call.services.stored_connectors.delete(call.user, fields.connector.id)
    return answer(wire.ConnectorDeleteResponse(id=str(deleted), status=0))


@router.operation("install_connector_examples")
async def install(call: Call) -> Response:
    """Adds missing ones, and updates those that this call added and that were not edited since."""
    done = await call.services.stored_connectors.install_examples(call.user)
    return answer(
        wire.ConnectorExamplesResponse(
            status=0,
            message=done.message,
            added=[str(one.id) for one in done.added],
            updated=[str(one.id) for one in done.updated],
            unchanged=[str(one.id) for one in done.unchanged],
        )
    )


@router.operation("test_connector")
async def test(call: Call) -> Response:
    """Makes a real connection with these settings, or those stored under the id, and stores nothing."""
    fields = await call.read(requests.ConnectorRequest)
    outcome = await call.services.connection_tests.test(call.user, given(fields.connector))
    return answer(
        like(
            wire.ConnectorTestResponse,
            outcome,
            status=0,
            ok=not outcome.reason,
            hasWarnings=bool(outcome.warnings),
            checks=[like(wire.ConnectionCheck, one) for one in outcome.checks],
        )
    )


def given(fields: requests.ConnectorFields) -> GivenConnector:
    values: dict[str, Any] = {**dict(fields), "settings": fields.setting_values}
    return GivenConnector(**values)


def _group(group: type[Group], category: Category, values: list[Any]) -> Group:
    return group(category=category, category_name=category.label, description="", values=values)


def _connector(shown: ShownInstance) -> wire.Connector:
    instance = shown.instance
    return like(
        wire.Connector,
        instance,
        id=str(instance.id),
        name=str(instance.id),
        category=shown.category,
        description=shown.description,
        settings=_settings(shown.settings),
        dialect_properties=wire.DialectProperties.model_validate(shown.flags),
        is_runnable=shown.is_runnable,
        groups=list(instance.groups) if shown.shows_groups else None,
        last_modified=moment(instance.last_modified) or "",
    )


def _template(found: ShownType) -> wire.ConnectorTemplate:
    """A type to be named and sent to update."""
    fields: dict[str, Any] = {**dict(_type(found)), "name": "", "id": None}
    return wire.ConnectorTemplate(**fields, dialect_properties=fields["properties"])


def _type(shown: ShownType) -> wire.ConnectorType:
    row = shown.row
    return like(
        wire.ConnectorType,
        row,
        name=row.dialect,
        settings=_settings(row.settings),
        properties=wire.DialectProperties.model_validate(row.flags),
        is_runnable=shown.is_runnable,
    )


def _settings(values: Mapping[str, SettingValue]) -> list[wire.ConnectorSetting]:
    return [wire.ConnectorSetting(name=name, value=value) for name, value in values.items()]
