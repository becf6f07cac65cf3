"""The get_config call, and the calls for contexts (namespaces, computes, clusters), the banner, and Hue's optimizer.

Contract platform 7.1, 7.3, 7.4 and 7.8. Every interface, even an unknown one, has the same namespace, compute and
cluster, because Hue clients request these before they know the interfaces. Optimizer calls are not supported.
"""

from functools import lru_cache
from urllib.parse import quote

import orjson
from fastapi import Response
from pydantic import BaseModel

from queryserver import __version__
from queryserver.administration.client_configuration import Browser, Configuration
from queryserver.api.dependencies import (
    AnyUser,
    BannerDep,
    ClientConfigurationDep,
    ClientDep,
    NoFields,
    ReadUser,
    SettingsDep,
)
from queryserver.api.responses import json_response
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import takes_sql
from queryserver.connectors.types import flags_of
from queryserver.errors.base import NotSupported
from queryserver.platform.settings.tree import Settings

router = PathGroup("get_config")

_HUE_LEVEL = "4.11.0"  # the version of Hue with which this API is compatible

context_router = PathGroup("context", prefix="")
optimizer = PathGroup("optimizer")


@router.post("/get_config", response_model=wire.ClientConfiguration)
async def get_config(
    user: AnyUser, _: NoFields, configuration: ClientConfigurationDep, settings: SettingsDep
) -> Response:
    """Return the interpreters, browsers, limits and flags that apply to the caller. Spec §4 SQL editor."""
    found = await configuration.of(user)
    return Response(configuration_json(settings, found), 200, media_type="application/json")


def configuration_json(settings: Settings, found: Configuration) -> bytes:
    """Return the response body. Each interpreter is encoded once and cached, since the body may list 200 of them."""
    body = _without_interpreters(settings, found).model_dump(by_alias=True)
    interpreters = [_interpreter(one) for one in found.interpreters]
    editor = orjson.Fragment(orjson.dumps({**body["app_config"]["editor"], "interpreters": interpreters}))
    body["app_config"]["editor"] = body["button_actions"][0] = editor
    body["app_config"]["catalogs"] = [
        _catalog_entry(one.key, one.nice_name, one.dialect) for one in found.interpreters if takes_sql(one)
    ]
    body["main_button_action"] = _interpreter(found.main) if found.main else editor
    return orjson.dumps(body)


def _without_interpreters(settings: Settings, found: Configuration) -> wire.ClientConfiguration:
    editor = _editor_app(found, settings)
    scheduler = _scheduler_app() if settings.desktop.task_server.beat_enabled else None
    flags = _service_flags(found, settings)
    default = found.default_sql
    return wire.ClientConfiguration(
        app_config=wire.AppConfig(
            editor=editor,
            catalogs=[],
            browser=wire.BrowserApp(
                name="browser",
                displayName="Browsers",
                buttonName="Browse",
                interpreters=[_browser(one) for one in found.browsers],
                interpreter_names=[one.type for one in found.browsers],
            ),
            scheduler=scheduler,
            home=wire.HomeApp(name="home", displayName="Home", buttonName="Documents", interpreters=[], page="/home"),
        ),
        main_button_action=editor,
        button_actions=[editor, scheduler] if scheduler else [editor],
        default_sql_interpreter=default.key if default else "",
        cluster_type="direct",
        has_computes=False,
        vw_name=settings.desktop.host_label,
        img_version=__version__,
        hue_version=_HUE_LEVEL,
        svc_config=flags,
        hue_config=flags,
        storage_browser=_storage_browser(found, settings),
        importer=_importer(found, settings),
        clusters=[wire.Cluster(id="default", name="default", type="direct", credentials={})],
        documents=wire.DocumentsConfig(types=list(found.document_types)),
        username=found.username,
        status=0,
    )


def _interpreter(connector: Connector) -> orjson.Fragment:
    return _interpreter_json(connector.key, connector.nice_name, connector.dialect, connector.interface)


@lru_cache(maxsize=4096)
def _interpreter_json(key: str, name: str, dialect: str, interface: str) -> orjson.Fragment:
    flags = flags_of(dialect, interface)
    return _json_fragment(
        wire.Interpreter(
            **_names(key, name, dialect),
            optimizer="off",
            is_sql=bool(flags.get("is_sql")),
            is_batchable=True,
            dialect=dialect,
            dialect_properties=wire.DialectProperties.model_validate(dict(flags)),
        )
    )


@lru_cache(maxsize=4096)
def _catalog_entry(key: str, name: str, dialect: str) -> orjson.Fragment:
    return _json_fragment(wire.CatalogEntry(**_names(key, name, dialect), is_sql=True, is_catalog=True))


def _names(key: str, name: str, dialect: str) -> dict[str, str]:
    tooltip = f"{dialect.title()} Query"
    shown = {"displayName": name, "buttonName": "Query", "tooltip": tooltip, "page": _page(key)}
    return {"name": name, "type": key, "id": key, **shown}


def _json_fragment(model: BaseModel) -> orjson.Fragment:
    return orjson.Fragment(model.__pydantic_serializer__.to_json(model, by_alias=True))


def _editor_app(found: Configuration, settings: Settings) -> wire.EditorApp:
    """Return the editor app with an empty list of interpreters."""
    keys = [one.key for one in found.interpreters]
    first_sql = next((one.key for one in found.interpreters if takes_sql(one)), "")
    return wire.EditorApp(
        name="editor",
        displayName="Editor",
        buttonName="Query",
        interpreters=[],
        default_limit=settings.editor.default_limit,
        interpreter_names=keys,
        page=_page(keys[0]) if keys else "/editor/",
        default_sql_interpreter=first_sql,
        source_autocomplete_disabled=False,
    )


def _scheduler_app() -> wire.SchedulerApp:
    """Return the scheduler app, whose only back end is the task server."""
    page = _page("celery-beat")
    entry = Browser("celery-beat", "Scheduler", page, "Schedule")
    return wire.SchedulerApp(
        name="celery-beat",
        displayName="Scheduler",
        buttonName="Schedule",
        interpreters=[_browser(entry)],
        interpreter_names=["celery-beat"],
        page=page,
    )


def _service_flags(found: Configuration, settings: Settings) -> wire.ServiceFlags:
    return wire.ServiceFlags(
        is_admin=found.is_admin,
        is_yarn_enabled=False,
        enable_task_server=settings.desktop.task_server.enabled,
        enable_workflow_creation_action=False,
        allow_sample_data_from_views=settings.editor.sample_views,
        enable_sharing=settings.desktop.enable_sharing,
        collect_usage=False,
    )


def _storage_browser(found: Configuration, settings: Settings) -> wire.StorageBrowserConfig:
    filebrowser = settings.filebrowser
    return wire.StorageBrowserConfig(
        enable_chunked_file_upload=filebrowser.show_upload_button,
        enable_new_storage_browser=False,
        restrict_file_extensions=list(filebrowser.restrict_file_extensions) or None,
        concurrent_max_connection=filebrowser.concurrent_max_connections,
        file_upload_chunk_size=filebrowser.file_upload_chunk_size,
        enable_file_download_button=found.may_download,
        max_file_editor_size=filebrowser.max_file_editor_size,
        enable_extract_uploaded_archive=False,
    )


def _importer(found: Configuration, settings: Settings) -> wire.ImporterConfig:
    return wire.ImporterConfig(
        is_enabled=found.may_import,
        restrict_local_file_extensions=list(settings.importer.restrict_local_file_extensions) or None,
        max_local_file_size_upload_limit=settings.importer.max_local_file_size_upload_limit,
    )


def _browser(one: Browser) -> wire.BrowserEntry:
    return wire.BrowserEntry(
        type=one.type, displayName=one.label, buttonName=one.button, tooltip=one.label, page=one.page
    )


def _page(key: str) -> str:
    return f"/editor/?type={quote(key, safe='')}"


@context_router.get("/api/v1/context/namespaces/{interface:interface}", response_model=wire.NamespacesResponse)
@context_router.get(
    "/desktop/api2/context/namespaces/{interface:interface}",
    name="list_context_namespaces_by_alias",
    response_model=wire.NamespacesResponse,
)
@context_router.get(
    "/api/v1/get_namespaces/{interface:interface}", name="get_namespaces", response_model=wire.NamespacesResponse
)
async def list_context_namespaces(interface: str, _user: AnyUser, _: NoFields) -> Response:
    """Return the only namespace and its compute. The key in the response is the interface in the path."""
    found = wire.Namespace(id="default", name="default", status="CREATED", computes=[_cluster()])
    return json_response(wire.NamespacesResponse.model_validate({interface: [found], "status": 0}))


@context_router.get("/api/v1/context/computes/{interface:interface}", response_model=wire.ComputesResponse)
@context_router.get(
    "/desktop/api2/context/computes/{interface:interface}",
    name="list_context_computes_by_alias",
    response_model=wire.ComputesResponse,
)
async def list_context_computes(interface: str, _user: AnyUser, _: NoFields) -> Response:
    """Return the only compute. The key in the response is the interface in the path."""
    found = wire.Compute(
        id="default", name="default", namespace="default", interface=interface, type="direct", options={}
    )
    return json_response(wire.ComputesResponse.model_validate({interface: [found], "status": 0}))


@context_router.get("/api/v1/context/clusters/{interface:interface}", response_model=wire.ClustersResponse)
@context_router.get(
    "/desktop/api2/context/clusters/{interface:interface}",
    name="list_context_clusters_by_alias",
    response_model=wire.ClustersResponse,
)
async def list_context_clusters(interface: str, _user: AnyUser, _: NoFields) -> Response:
    """Return the only cluster. The key in the response is the interface in the path."""
    return json_response(wire.ClustersResponse.model_validate({interface: [_cluster()], "status": 0}))


@context_router.get("/api/v1/banners", response_model=wire.BannersResponse)
async def get_banners(_client: ClientDep, banner: BannerDep) -> Response:
    """Return the setting `desktop.custom.banner_top_html`, reduced to harmless HTML tags. Needs no credentials."""
    return json_response(wire.BannersResponse(system=None, configured=banner, status=0))


@optimizer.post("/optimizer/{name:optimizer}", status_code=501, responses=failures(501))
async def ask_optimizer(name: str, _user: ReadUser, _: NoFields) -> Response:
    """Return 501, because this server has no optimizer."""
    raise NotSupported(f"The optimizer call {name} is not supported.")


def _cluster() -> wire.Cluster:
    return wire.Cluster(id="default", name="default", type="direct", credentials={})
