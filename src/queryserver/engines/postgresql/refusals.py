"""What the guard of a connection has refused, as domain errors."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from queryserver.domain.errors.statements import EngineError, OutcomeUnknown, RowTooLarge, cell_too_large
from queryserver.engines.postgresql.message_guard import MessageGuard


@contextmanager
def refusals(guard: MessageGuard, columns: Sequence[str], rows_read: int = 0) -> Generator[None]:
    """Around the rows of a statement: the reason why the guard has ended the connection comes out, not the loss.

    `rows_read`: rows of the chunks before.
    """
    try:
        yield
    except EngineError as error:
        if guard.refusal is None:
            raise
        raise _reason(guard, columns, rows_read) from error


def _reason(guard: MessageGuard, columns: Sequence[str], rows_read: int) -> EngineError:
    refusal = guard.refusal
    if refusal is None or refusal.row is None:
        return OutcomeUnknown("PostgreSQL sent a message that is too large; the statement may have taken effect.")
    row = rows_read + refusal.row
    if refusal.column is None:
        return RowTooLarge(limit_bytes=refusal.limit_bytes, row=row)
    name = columns[refusal.column] if refusal.column < len(columns) else None
    return cell_too_large(limit_bytes=refusal.limit_bytes, row=row, column=name)
