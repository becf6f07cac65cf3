"""get_config: what a client needs to know before it begins (Contract platform 7.1)."""

import orjson
from fastapi import APIRouter, Response

from queryserver import __version__
from queryserver.api.answers import failures
from queryserver.api.platform_calls import PlatformCall, PlatformRoute
from queryserver.api.v1 import client_shapes as shapes
from queryserver.schemas import generated as wire
from queryserver.services.client_configuration import Configuration
from queryserver.settings import Settings

router = APIRouter(prefix="/api/v1", tags=["get_config"], route_class=PlatformRoute)

_HUE_LEVEL = "4.11.0"
"""The level of Hue whose clients find here what they look for."""


@router.post(
    "/get_config",
    response_model=wire.ClientConfiguration,
    responses=failures(400, 413, 415),
    summary="What the caller may use here",
)
async def get_config(call: PlatformCall) -> Response:
    """Interpreters, browsers, limits and flags for this caller, as of now. Spec §4 SQL editor."""
    found = await call.services.configuration.clients.of(call.user)
    return Response(body_of(call.services.settings, found), 200, media_type="application/json")


def body_of(settings: Settings, found: Configuration) -> bytes:
    """The answer. Of two hundred interpreters, each told twice, it would take longer to write it as one model."""
    body = _without_interpreters(settings, found).model_dump(by_alias=True)
    interpreters = [shapes.interpreter(one) for one in found.interpreters]
    editor = orjson.Fragment(orjson.dumps({**body["app_config"]["editor"], "interpreters": interpreters}))
    body["app_config"]["editor"] = body["button_actions"][0] = editor
    body["app_config"]["catalogs"] = [shapes.catalog_entry(one) for one in found.interpreters if one.is_sql]
    body["main_button_action"] = shapes.interpreter(found.main) if found.main else editor
    return orjson.dumps(body)


def _without_interpreters(settings: Settings, found: Configuration) -> wire.ClientConfiguration:
    editor = shapes.editor_app(found, settings)
    scheduler = shapes.scheduler_app() if settings.desktop.task_server.beat_enabled else None
    flags = shapes.service_flags(found, settings)
    default = found.default_sql
    return wire.ClientConfiguration(
        app_config=wire.AppConfig(
            editor=editor,
            catalogs=[],
            browser=shapes.browser_app(found),
            scheduler=scheduler,
            home=shapes.home_app(),
        ),
        main_button_action=editor,
        button_actions=[editor, scheduler] if scheduler else [editor],
        default_sql_interpreter=default.connector.key if default else "",
        cluster_type="direct",
        has_computes=False,
        vw_name=settings.desktop.host_label,
        img_version=__version__,
        hue_version=_HUE_LEVEL,
        svc_config=flags,
        hue_config=flags,
        storage_browser=shapes.storage_browser(found, settings),
        importer=shapes.importer(found, settings),
        clusters=[wire.Cluster(id="default", name="default", type="direct", credentials={})],
        documents=wire.DocumentsConfig(types=list(found.document_types)),
        status=0,
    )
