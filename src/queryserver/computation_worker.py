"""The program of a computation worker. It reads tasks from standard input and writes results to standard output."""

import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import orjson

from queryserver.errors.base import QueryServerError
from queryserver.platform import computation as protocol
from queryserver.platform.confinement import Confinement, confine, limit_processor_time, resident_bytes

Compute = Callable[[Mapping[str, Any], bytes], object]


def load_computation(task: protocol.Task) -> Compute:
    """Return the function that performs `task`. It maps options and content to JSON, and may raise domain errors."""
    match task:
        case protocol.Task.FORMAT:
            from queryserver.sql.formatter import format_text  # noqa: PLC0415

            return format_text
        case protocol.Task.CHOOSE_STATEMENT | protocol.Task.FIRST_TO_EXPLAIN:
            from queryserver.sql import statements  # noqa: PLC0415

            return (
                statements.choose_statement if task is protocol.Task.CHOOSE_STATEMENT else statements.first_to_explain
            )
        case protocol.Task.DETECT_FILE | protocol.Task.PREVIEW | protocol.Task.HEADER:
            from queryserver.imports import computed  # noqa: PLC0415

            return {
                protocol.Task.DETECT_FILE: computed.detect_file,
                protocol.Task.PREVIEW: computed.preview,
                protocol.Task.HEADER: computed.header,
            }[task]


_TRACE_LINES = -20
_MAX_RESIDENT_BYTES = 160 * 1024 * 1024
"""Memory above which a process exits after its response, because freed memory may not return to the system."""


def main() -> None:
    """Serve until standard input is closed. `sys.argv[1]` is this process's memory limit in bytes."""
    confine(Confinement(memory_bytes=int(sys.argv[1]), file_bytes=0, niceness=10))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    with suppress(BrokenPipeError, KeyboardInterrupt):
        while head := requests.read(protocol.HEAD.size):
            _, payload_bytes, content_bytes = protocol.HEAD.unpack(head)
            answer, is_last = _frame(*_answer(requests, payload_bytes, content_bytes))
            answers.write(answer)
            answers.flush()
            if is_last:
                return


def _frame(kind: bytes, payload: Any) -> tuple[bytes, bool]:
    """Encode the response as a frame. Return the frame, and whether it is the last one."""
    is_last = kind in (protocol.EXCEEDED, protocol.BROKEN) or resident_bytes() > _MAX_RESIDENT_BYTES
    try:
        body = orjson.dumps([payload, is_last])
    except MemoryError:
        kind, body, is_last = protocol.EXCEEDED, b"[null,true]", True
    except TypeError as error:
        # The result cannot be encoded as JSON, for example because of a lone surrogate.
        kind, body, is_last = protocol.BROKEN, orjson.dumps([f"No JSON: {error}", True]), True
    return protocol.HEAD.pack(kind, len(body), 0) + body, is_last


def _answer(requests: BinaryIO, payload_bytes: int, content_bytes: int) -> tuple[bytes, Any]:
    try:
        task = orjson.loads(requests.read(payload_bytes))
        # The computation is imported before the content is read, because the content may use up the memory. An import
        # that runs out of memory fails with misleading errors.
        compute = load_computation(protocol.Task(task["task"]))
        content = requests.read(content_bytes)
        limit_processor_time(task["limit_s"])
        return protocol.RESULT, compute(task["options"], content)
    except QueryServerError as error:
        return protocol.REFUSED, [type(error).__name__, error.code, error.message, error.details]
    except (MemoryError, RecursionError):
        return protocol.EXCEEDED, None
    except Exception:  # noqa: BLE001 last resort of this process: the server logs the traceback
        return protocol.BROKEN, traceback.format_exc(limit=_TRACE_LINES)
