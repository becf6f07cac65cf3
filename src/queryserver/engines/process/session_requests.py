"""Handles the calls of an engine process for one session, about files of the stores and stored results."""

from collections.abc import Mapping, Sequence
from typing import Any

from queryserver import errors
from queryserver.engines.process.channel import Content
from queryserver.engines.process.engine_process import Reply
from queryserver.engines.process.file_calls import FileMethod
from queryserver.engines.process.file_requests import FileRequests
from queryserver.engines.process.result_calls import ResultMethod
from queryserver.engines.process.result_requests import ResultRequests
from queryserver.engines.reach import StatementFiles, StatementResults

_FILE_METHODS, _RESULT_METHODS = frozenset(FileMethod), frozenset(ResultMethod)


class SessionRequests:
    """The calls of one session, whose statements run one at a time; None for what the session may not use."""

    def __init__(self, *, files: StatementFiles | None = None, results: StatementResults | None = None) -> None:
        self._files = None if files is None else FileRequests(files)
        self._results = None if results is None else ResultRequests(results)

    async def answer(self, method: str, arguments: Mapping[str, Any], content: Content) -> Reply:
        """Handle a call. Raises domain errors, and Interrupted after `interrupt`."""
        if self._files is not None and method in _FILE_METHODS:
            return await self._files.answer(method, arguments, content)
        if self._results is not None and method in _RESULT_METHODS:
            return await self._results.answer(method, arguments, content)
        raise errors.PermissionDenied("This session reaches no files of stores and no stored results.")

    def begin(self) -> None:
        """Called when a statement begins."""
        if self._results is not None:
            self._results.warnings = []

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the log of the statement."""
        return () if self._results is None else self._results.warnings

    def interrupt(self) -> None:
        """Cancel the calls in progress, except those that clean up."""
        for requests in (self._files, self._results):
            if requests is not None:
                requests.interrupt()

    async def close(self) -> None:
        """Close the results and abort the writes that an ended statement has left open. Idempotent."""
        for requests in (self._files, self._results):
            if requests is not None:
                await requests.close()
