"""Calls for administrators only (Contract platform 7.5 to 7.7, 7.9)."""

from fastapi import Response

from queryserver.api.answers import answer, like, moment
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.errors.base import InvalidParameter, MissingParameter, NotSupported
from queryserver.statements.overview import OverviewEntry, OverviewFilter
from queryserver.statements.status import parse_operation_id

router = PathGroup()


@router.operation("check_config")
async def check_config(call: Call) -> Response:
    """What `queryserver config check` finds, without what would change anything, within 30 s."""
    report = await call.services.configuration.check.report()
    return answer(
        wire.CheckConfigResponse(
            hue_config_dir=report.directory,
            config_errors=[
                wire.ConfigProblem(name=one.key, message=one.text, value=report.value_of(one.key), level=one.level)
                for one in report.findings
            ],
            status=0,
        )
    )


@router.operation("get_server_logs")
async def logs(call: Call) -> Response:
    """Whole lines from the last 32 KiB, of the log file or of the process that answers."""
    asked = await call.read(requests.ServerLogsParameters)
    log = call.services.configuration.logs
    lines = await log.lines(newest_first=asked.reverse)
    return answer(wire.ServerLogsResponse(hue_hostname=log.host_name, logs=list(lines), status=0))


@router.operation("download_server_logs")
async def download(call: Call) -> Response:
    """The last MiB."""
    name, content = await call.services.configuration.logs.archive()
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, 200, headers, "application/zip")


_CONNECTORS = "connectors"
# Applications of Hue that this service does not have.
_SHOWN = 100


@router.operation("list_app_examples")
async def available_app_examples(call: Call) -> Response:
    """Name for install_app_examples, name for people."""
    del call
    return answer(wire.AppExamplesResponse(apps={_CONNECTORS: "Connectors"}, status=0))


@router.operation("install_app_examples")
async def install_app_examples(call: Call) -> Response:
    """`connectors` does what connector/examples/install does."""
    name = (await call.read(requests.InstallExamplesRequest)).app_name
    if name is None:
        raise MissingParameter("Missing parameter: app_name is required.")
    if name in requests.OTHER_EXAMPLES:
        raise NotSupported(f"There are no examples for {name} here.")
    if name != _CONNECTORS:
        raise InvalidParameter(f"Unsupported app name: {name[:_SHOWN]}")
    await call.services.stored_connectors.install_examples(call.user)
    message = f"Successfully installed examples for {name}."
    return answer(wire.InstallAppExamplesResponse(message=message, status=0))


@router.operation("list_statements")
async def list_statements(call: Call) -> Response:
    """Newest first, without their texts; by default those that wait or run."""
    asked = await call.read(requests.StatementListParameters)
    chosen = OverviewFilter(asked.states, asked.user, asked.connector, asked.older_than, asked.after)
    page, following = await call.services.statements.administration.page(chosen, limit=asked.limit)
    return answer(
        wire.AdminStatementsResponse(status=0, statements=[_shown(entry) for entry in page], next_after=following)
    )


@router.operation("show_statement")
async def show_statement(call: Call, operation_id: str) -> Response:
    """With its text; an audit event says that it was shown."""
    administration = call.services.statements.administration
    found = await administration.details(parse_operation_id(operation_id), by=call.user.username)
    return answer(
        like(
            wire.AdminStatementResponse,
            found,
            status=0,
            statement=_shown(found.entry),
            text=found.statement,
            deadline=moment(found.deadline) or "",
        )
    )


@router.operation("cancel_statement_of_user")
async def cancel_statement(call: Call, operation_id: str) -> Response:
    """Waits up to `editor.cancel_wait_s` for its end. No effect on a statement that has ended."""
    services = call.services
    entry = await services.statements.administration.stop(
        parse_operation_id(operation_id),
        by=call.user.username,
        wait_s=services.settings.editor.cancel_wait.total_seconds(),
    )
    return answer(wire.AdminCancelResponse(status=0, statement=_shown(entry)))


def _shown(entry: OverviewEntry) -> wire.AdminStatement:
    times = entry.times
    return like(
        wire.AdminStatement,
        entry,
        id=str(entry.id),
        state=entry.state.value,
        submitted=moment(times.submitted) or "",
        started=moment(times.started),
        ended=moment(times.ended),
        elapsed_ms=round(times.elapsed.total_seconds() * 1000),
        queued_ms=round(times.queued.total_seconds() * 1000),
        bytes=entry.size_bytes,
    )
