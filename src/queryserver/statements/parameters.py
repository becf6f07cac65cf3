"""Checks parameter values, encrypts them for statement records, and decrypts them for engines.

The values never appear in logs, responses or queues. They stay encrypted in the record until it is deleted.
"""

import asyncio

import orjson

from queryserver.errors.base import InvalidParameter
from queryserver.platform.sealer import Sealer
from queryserver.sql.markers import ScriptMarkers, StatementParameters
from queryserver.sql.parameters import MAX_BYTES, MAX_ROWS_BYTES, MAX_WRITTEN_BYTES, Parameters, ParameterSupport
from queryserver.sql.splitter import Choice
from queryserver.sql.statement_kinds import controls_transaction
from queryserver.statements.model import StatementRecord

_MAX_ROWS_CHARACTERS = 128 * 1024 * 1024


class ParameterSealer:
    """Encrypts the parameter values of a script for the records of its statements."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal(self, parameters: StatementParameters) -> bytes:
        """Encrypt the values. Raises InvalidParameter if they exceed the size limit."""
        content = _content(parameters)
        if parameters.values.rows:
            if len(content) > MAX_ROWS_BYTES:
                raise InvalidParameter(f"parameter_rows: at most {MAX_ROWS_BYTES} bytes of JSON together.")
            return self._sealer.seal(content)
        if len(content) > MAX_BYTES:
            raise InvalidParameter(f"parameters: at most {MAX_BYTES} bytes of JSON together.")
        return self._sealer.seal(content)

    def unseal(self, sealed: bytes) -> StatementParameters:
        """Decrypt the values. Raises ValueError if the key is unknown or the content was tampered with."""
        try:
            return StatementParameters.read(orjson.loads(self._sealer.unseal(sealed)))
        except (InvalidParameter, KeyError, TypeError) as error:
            changed = "the sealed parameters were changed"
            raise ValueError(changed) from error

    def stored(self, record: StatementRecord) -> Parameters | None:
        """Return the values of a statement's whole script. None if it has none, or they are no longer readable."""
        if record.sealed_parameters is None:
            return None
        try:
            return self.unseal(record.sealed_parameters).values
        except ValueError:
            return None

    def match_record(self, record: StatementRecord, parameters: Parameters | None) -> bool:
        """Return whether the values equal those of the recorded call (Contract editor 4.4)."""
        if record.sealed_parameters is None or parameters is None:
            return record.sealed_parameters is None and parameters is None
        recorded = self.stored(record)
        return recorded is not None and _content(StatementParameters(recorded)) == _content(
            StatementParameters(parameters)
        )


def check_parameters(parameters: Parameters, markers: ScriptMarkers, support: ParameterSupport) -> StatementParameters:
    """Check the values for the chosen statement of a script. Raises InvalidParameter, which names the parameter."""
    support.require(parameters)
    markers.require(parameters)
    for row in parameters.rows or (parameters,):
        if row.by_name is None:
            break
        sizes = {name: len(orjson.dumps(value)) for name, value in dict(row.original).items()}
        if (
            sum(sizes[name] * times for name, times in zip(markers.names, markers.occurrences, strict=True))
            > MAX_WRITTEN_BYTES
        ):
            raise InvalidParameter(
                f"parameters: at most {MAX_WRITTEN_BYTES} bytes of JSON, a value as often as its name stands."
            )
    return StatementParameters(parameters, markers.before)


async def check_for_statement(
    choice: Choice, parameters: Parameters, support: ParameterSupport, script: str, dialect: str
) -> StatementParameters:
    """Check the values as `check_parameters` does. Raises InvalidParameter.

    If there are several rows, also require a single statement that can run once for each row.
    """
    if not parameters.rows:
        return check_parameters(parameters, choice.markers, support)
    _require_one_change(parameters, choice)
    if await asyncio.to_thread(controls_transaction, script[choice.first : choice.stop], dialect):
        # Such a statement would end the transaction that all rows share.
        raise InvalidParameter(
            "parameter_rows: the statement must be one that changes rows, not one that begins or ends a transaction."
        )
    return await asyncio.to_thread(check_parameters, parameters, choice.markers, support)


def _require_one_change(parameters: Parameters, choice: Choice) -> None:
    if choice.count > 1:
        raise InvalidParameter("parameter_rows: the text must be one statement.")
    if choice.has_result_set:
        raise InvalidParameter("parameter_rows: the statement must be one that changes rows, not one that reads them.")
    if len(parameters.rows) * (choice.stop - choice.first) > _MAX_ROWS_CHARACTERS:
        raise InvalidParameter(
            f"parameter_rows: the text is sent for each row, at most {_MAX_ROWS_CHARACTERS} characters in all: send"
            " fewer rows."
        )


def _content(parameters: StatementParameters) -> bytes:
    return orjson.dumps(parameters.stored(), option=orjson.OPT_SORT_KEYS)
