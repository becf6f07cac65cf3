"""Connector calls: connector types and stored connectors (Contract platform 5)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Response

from queryserver.api.dependencies import (
    Admin,
    AnyUser,
    ConnectionTestsDep,
    NoFields,
    ReadUser,
    StoredConnectorsDep,
    fields,
)
from queryserver.api.responses import json_response, model_from, utc_text
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import platform as requests
from queryserver.connectors.forms import FormOption
from queryserver.connectors.instances import InstanceView, SubmittedConnector, TypeView
from queryserver.connectors.model import SettingValue
from queryserver.connectors.types import Category
from queryserver.errors.statements import connector_not_found

router = PathGroup("connector")

Group = TypeVar("Group", wire.ConnectorTypeGroup, wire.ConnectorGroup)


@router.get("/connector/types", response_model=wire.ConnectorTypeList)
@router.get("/connectors/types", name="get_connectors_types", response_model=wire.ConnectorTypeList)
@router.post("/connectors/types", name="post_connectors_types", response_model=wire.ConnectorTypeList)
async def list_connector_types(_user: AnyUser, _: NoFields, connectors: StoredConnectorsDep) -> Response:
    """List the available connector types in six categories."""
    found = await connectors.types()
    groups = [
        _group(wire.ConnectorTypeGroup, category, [_type(one) for one in found if one.row.category is category])
        for category in Category
    ]
    categories = [wire.ConnectorCategoryEntry(name=one.label, type=one, description="") for one in Category]
    return json_response(wire.ConnectorTypeList(connectors=groups, categories=categories, status=0))


@router.get("/connector/instances", response_model=wire.ConnectorList)
async def list_connectors(user: ReadUser, _: NoFields, connectors: StoredConnectorsDep) -> Response:
    """List the connectors that the caller may use, by category and ascending id."""
    found = await connectors.visible(user)
    groups = [
        _group(wire.ConnectorGroup, category, [_connector(one) for one in found if one.category is category])
        for category in Category
    ]
    return json_response(wire.ConnectorList(connectors=groups, status=0))


@router.post("/connector/instance/new/{dialect}/{interface}", response_model=wire.ConnectorTemplateResponse)
async def new_connector(
    dialect: str,
    interface: str,
    _user: AnyUser,
    request: Annotated[requests.NewConnectorRequest, fields(requests.NewConnectorRequest)],
    connectors: StoredConnectorsDep,
) -> Response:
    """Return a connector type with its options, its default settings and the submitted values. Stores nothing."""
    found = await connectors.template(dialect, interface, submitted_connector(request.connector))
    options = await connectors.options(dialect, interface)
    return json_response(wire.ConnectorTemplateResponse(connector=_template(found, options), status=0))


@router.get("/connector/instance/get/{id}", response_model=wire.ConnectorResponse)
async def get_connector(
    id: str,  # noqa: A002 the path's own name
    user: ReadUser,
    _: NoFields,
    connectors: StoredConnectorsDep,
) -> Response:
    """Return a connector with its settings, and the options of its type. Secrets are masked."""
    shown = await connectors.get(user, id)
    options = await connectors.options(shown.instance.dialect, shown.instance.interface)
    return json_response(wire.ConnectorResponse(**dict(_connector(shown)), options=_options(options), status=0))


@router.post("/connector/instance/update", response_model=wire.ConnectorUpdateResponse, responses=failures(404, 409))
async def save_connector(
    user: Admin,
    request: Annotated[requests.ConnectorRequest, fields(requests.ConnectorRequest)],
    connectors: StoredConnectorsDep,
) -> Response:
    """Create a connector, or change the connector with the submitted id. The connection is not tested."""
    shown, is_new = await connectors.save(user, submitted_connector(request.connector))
    return json_response(wire.ConnectorUpdateResponse(connector=_connector(shown), saved_as=is_new, status=0))


@router.post("/connector/instance/delete", response_model=wire.ConnectorDeleteResponse, responses=failures(404, 409))
async def delete_connector(
    user: Admin,
    request: Annotated[requests.ConnectorIdRequest, fields(requests.ConnectorIdRequest)],
    connectors: StoredConnectorsDep,
) -> Response:
    """Delete a connector. The history and results of its statements remain, and its id is not reused."""
    if request.connector.id is None:
        raise connector_not_found("(none)")
    deleted = await connectors.delete(user, request.connector.id)
    return json_response(wire.ConnectorDeleteResponse(id=str(deleted), status=0))


@router.post("/connector/examples/install", response_model=wire.ConnectorExamplesResponse)
async def install_connector_examples(user: Admin, _: NoFields, connectors: StoredConnectorsDep) -> Response:
    """Add missing example connectors. Update those that an earlier call added and that have not been edited since."""
    done = await connectors.install_examples(user)
    return json_response(
        wire.ConnectorExamplesResponse(
            status=0,
            message=done.message,
            added=[str(one.id) for one in done.added],
            updated=[str(one.id) for one in done.updated],
            unchanged=[str(one.id) for one in done.unchanged],
        )
    )


@router.post("/connector/instance/test", response_model=wire.ConnectorTestResponse, responses=failures(404, 501))
async def test_connector(
    user: Admin,
    request: Annotated[requests.ConnectorRequest, fields(requests.ConnectorRequest)],
    connection_tests: ConnectionTestsDep,
) -> Response:
    """Test a connection with the submitted settings, or with the settings stored under the id. Stores nothing."""
    outcome = await connection_tests.test(user, submitted_connector(request.connector))
    return json_response(
        model_from(
            wire.ConnectorTestResponse,
            outcome,
            status=0,
            ok=not outcome.reason,
            hasWarnings=bool(outcome.warnings),
            checks=[model_from(wire.ConnectionCheck, one) for one in outcome.checks],
        )
    )


def submitted_connector(fields: requests.ConnectorFields) -> SubmittedConnector:
    values: dict[str, Any] = {**dict(fields), "settings": fields.setting_values}
    return SubmittedConnector(**values)


def _group(group: type[Group], category: Category, values: list[Any]) -> Group:
    return group(category=category, category_name=category.label, description="", values=values)


def _connector(shown: InstanceView) -> wire.Connector:
    instance = shown.instance
    return model_from(
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
        last_modified=utc_text(instance.last_modified) or "",
    )


def _template(found: TypeView, options: Sequence[FormOption]) -> wire.ConnectorTemplate:
    """Return a connector type as a template, which clients complete with a name and send to `update`."""
    fields: dict[str, Any] = {**dict(_type(found)), "name": "", "id": None, "options": _options(options)}
    return wire.ConnectorTemplate(**fields, dialect_properties=fields["properties"])


def _options(options: Sequence[FormOption]) -> list[wire.ConnectorOption]:
    return [model_from(wire.ConnectorOption, one, choices=list(one.choices)) for one in options]


def _type(shown: TypeView) -> wire.ConnectorType:
    row = shown.row
    return model_from(
        wire.ConnectorType,
        row,
        name=row.dialect,
        settings=_settings(row.settings),
        properties=wire.DialectProperties.model_validate(row.flags),
        is_runnable=shown.is_runnable,
    )


def _settings(values: Mapping[str, SettingValue]) -> list[wire.ConnectorSetting]:
    return [wire.ConnectorSetting(name=name, value=value) for name, value in values.items()]
