"""Calls for administrators (Contract platform 7.5 to 7.7, 7.9 to 7.11)."""

from collections import Counter
from typing import Annotated

from fastapi import Response

from queryserver.administration.doctor import State
from queryserver.api.dependencies import (
    Admin,
    ConfigurationCheckDep,
    DoctorDep,
    InstancesDep,
    NoFields,
    ServerLogsDep,
    SettingsDep,
    StatementAdministrationDep,
    StoredConnectorsDep,
    fields,
)
from queryserver.api.responses import json_response, model_from, utc_text
from queryserver.api.routes import PathGroup, contents, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import platform as requests
from queryserver.errors.base import InvalidParameter, MissingParameter, NotSupported
from queryserver.statements.overview import OverviewEntry, OverviewFilter
from queryserver.statements.status import parse_operation_id
from queryserver.tasks.instances import Instance

router = PathGroup("admin")


@router.get("/check_config", response_model=wire.CheckConfigResponse)
async def check_config(_user: Admin, _: NoFields, check: ConfigurationCheckDep) -> Response:
    """Return the findings of `queryserver config check` within 30 seconds. Checks that change something are skipped."""
    report = await check.report()
    return json_response(
        wire.CheckConfigResponse(
            hue_config_dir=report.directory,
            config_errors=[
                wire.ConfigProblem(name=one.key, message=one.text, value=report.value_of(one.key), level=one.level)
                for one in report.findings
            ],
            status=0,
        )
    )


@router.get("/logs", response_model=wire.ServerLogsResponse, responses=failures(404))
async def get_server_logs(
    _user: Admin,
    request: Annotated[requests.ServerLogsParameters, fields(requests.ServerLogsParameters)],
    logs: ServerLogsDep,
) -> Response:
    """Return the complete lines in the last 32 KiB of the log file, or of the log of the responding process."""
    lines = await logs.lines(newest_first=request.reverse)
    return json_response(wire.ServerLogsResponse(hue_hostname=logs.host_name, logs=list(lines), status=0))


@router.get("/logs/download", response_class=Response, responses=contents("application/zip") | failures(404))
async def download_server_logs(_user: Admin, _: NoFields, logs: ServerLogsDep) -> Response:
    """Return the last MiB of the server log in a ZIP file."""
    name, content = await logs.archive()
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, 200, headers, "application/zip")


_CONNECTORS = "connectors"
_MAX_SHOWN_CHARACTERS = 100


@router.get("/available_app_examples", response_model=wire.AppExamplesResponse)
async def list_app_examples(_user: Admin, _: NoFields) -> Response:
    """List the names that `install_app_examples` accepts, with their display names."""
    return json_response(wire.AppExamplesResponse(apps={_CONNECTORS: "Connectors"}, status=0))


@router.post("/install_app_examples", response_model=wire.InstallAppExamplesResponse, responses=failures(501))
async def install_app_examples(
    user: Admin,
    request: Annotated[requests.InstallExamplesRequest, fields(requests.InstallExamplesRequest)],
    connectors: StoredConnectorsDep,
) -> Response:
    """Install the examples of an application. The name `connectors` has the effect of `connector/examples/install`."""
    name = request.app_name
    if name is None:
        raise MissingParameter("Missing parameter: app_name is required.")
    if name in requests.OTHER_EXAMPLES:
        raise NotSupported(f"This server has no examples for {name}.")
    if name != _CONNECTORS:
        raise InvalidParameter(f"Unsupported app name: {name[:_MAX_SHOWN_CHARACTERS]}")
    await connectors.install_examples(user)
    message = f"Successfully installed examples for {name}."
    return json_response(wire.InstallAppExamplesResponse(message=message, status=0))


@router.get("/admin/statements", response_model=wire.AdminStatementsResponse)
async def list_statements(
    _user: Admin,
    request: Annotated[requests.StatementListParameters, fields(requests.StatementListParameters)],
    statements: StatementAdministrationDep,
) -> Response:
    """List statements of all users without their SQL, newest first.

    By default, only waiting and running statements are listed.
    """
    chosen = OverviewFilter(request.states, request.user, request.connector, request.older_than, request.after)
    page, following = await statements.page(chosen, limit=request.limit)
    return json_response(
        wire.AdminStatementsResponse(
            status=0, statements=[_statement_body(entry) for entry in page], next_after=following
        )
    )


@router.get("/admin/statements/{operation_id:name}", response_model=wire.AdminStatementResponse)
async def show_statement(
    operation_id: str, user: Admin, _: NoFields, statements: StatementAdministrationDep
) -> Response:
    """Return a statement of any user, including its SQL. The access is recorded as an audit event."""
    found = await statements.details(parse_operation_id(operation_id), by=user.username)
    return json_response(
        model_from(
            wire.AdminStatementResponse,
            found,
            status=0,
            statement=_statement_body(found.entry),
            text=found.statement,
            deadline=utc_text(found.deadline) or "",
        )
    )


@router.post("/admin/statements/{operation_id:name}/cancel", response_model=wire.AdminCancelResponse)
async def cancel_statement_of_user(
    operation_id: str, user: Admin, _: NoFields, statements: StatementAdministrationDep, settings: SettingsDep
) -> Response:
    """Cancel a statement of any user on the engine, and wait up to `editor.cancel_wait_s` seconds for its end.

    The call has no effect on a statement that has ended.
    """
    entry = await statements.stop(
        parse_operation_id(operation_id), by=user.username, wait_s=settings.editor.cancel_wait.total_seconds()
    )
    return json_response(wire.AdminCancelResponse(status=0, statement=_statement_body(entry)))


def _statement_body(entry: OverviewEntry) -> wire.AdminStatement:
    times = entry.times
    return model_from(
        wire.AdminStatement,
        entry,
        id=str(entry.id),
        state=entry.state.value,
        submitted=utc_text(times.submitted) or "",
        started=utc_text(times.started),
        ended=utc_text(times.ended),
        elapsed_ms=round(times.elapsed.total_seconds() * 1000),
        queued_ms=round(times.queued.total_seconds() * 1000),
        bytes=entry.size_bytes,
    )


@router.get("/admin/instances", response_model=wire.AdminInstancesResponse)
async def list_instances(_user: Admin, _: NoFields, instances: InstancesDep) -> Response:
    """List the processes of the fleet that sent a heartbeat within the last day, in the order of their starts."""
    found = await instances.recent()
    return json_response(
        wire.AdminInstancesResponse(status=0, instances=[_instance_body(one, is_alive) for one, is_alive in found])
    )


def _instance_body(instance: Instance, is_alive: bool) -> wire.AdminInstance:
    return model_from(
        wire.AdminInstance,
        instance,
        kind=instance.kind.value,
        started=utc_text(instance.started_at) or "",
        heartbeat=utc_text(instance.heartbeat_at) or "",
        is_alive=is_alive,
    )


@router.get("/admin/doctor", response_model=wire.AdminDoctorResponse)
async def examine_deployment(user: Admin, _: NoFields, doctor: DoctorDep, logs: ServerLogsDep) -> Response:
    """Return the findings of `queryserver doctor` on the responding server, within 45 seconds."""
    examination = await doctor.examination(user)
    count = Counter(one.state for one in examination.findings)
    return json_response(
        wire.AdminDoctorResponse(
            status=0,
            host=logs.host_name,
            took_ms=round(1000 * examination.took_s),
            errors=count[State.ERROR],
            warnings=count[State.WARNING],
            findings=[
                wire.DoctorFinding(area=one.area, state=one.state.value, what=one.what, to_do=one.to_do)
                for one in examination.findings
            ],
        )
    )
