"""The tasks of a worker by name. A module is imported with the first task that needs it."""

from collections.abc import Callable, Mapping
from typing import Any

from queryserver.interfaces.computation import Task

Compute = Callable[[Mapping[str, Any], bytes], object]


def computation_of(task: Task) -> Compute:
    """What computes `task`: options and content in, JSON out. Raises domain errors when it is called."""
    match task:
        case Task.FORMAT:
            from queryserver.services.formatting import format_text  # noqa: PLC0415

            return format_text
        case Task.CHOOSE_STATEMENT | Task.FIRST_TO_EXPLAIN:
            from queryserver.services.statements import choosing  # noqa: PLC0415

            return choosing.choose_statement if task is Task.CHOOSE_STATEMENT else choosing.first_to_explain
        case Task.DETECT_FILE | Task.DETECT_ENCODING | Task.PREVIEW | Task.HEADER:
            from queryserver.services.importing import computed  # noqa: PLC0415

            return {
                Task.DETECT_FILE: computed.detect_file,
                Task.DETECT_ENCODING: computed.file_encoding,
                Task.PREVIEW: computed.preview,
                Task.HEADER: computed.header,
            }[task]
