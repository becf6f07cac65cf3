"""Records of long operations, and of moves and copies of several steps (Contract storage 7.5, 7.6).

Each method is one transaction. All raise DatabaseUnavailable. Methods that take a lease and answer a bool say whether
the lease still holds; without it they change nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from queryserver.domain.files import EntryKind
from queryserver.domain.transfers import (
    ClaimedTransfer,
    KeyState,
    OperationState,
    OperationStatus,
    Transfer,
    TransferKey,
    TransferLease,
    TransferState,
)


class OperationRecords(Protocol):
    """Long operations whose clients ask for the outcome later."""

    async def begin(self, operation_id: UUID, *, user_id: int, kind: str, path: str, lease: timedelta) -> None:
        """Record a running operation."""
        ...

    async def report(self, operation_id: UUID, *, done: int, total: int | None, lease: timedelta) -> None:
        """Tell how far it is, and that its process lives."""
        ...

    async def end(self, operation_id: UUID, *, state: OperationState, result: Mapping[str, Any] | str) -> None:
        """Record the final body, once."""
        ...

    async def read(self, operation_id: UUID, *, user_id: int) -> OperationStatus | None:
        """None when there is none of this user."""
        ...

    async def give_up(self, result: Mapping[str, Any]) -> int:
        """End the operations whose process is gone and which nobody goes on with; how many."""
        ...


class TransferRecords(Protocol):
    """Moves and copies, with every entry of the source."""

    async def begin(self, transfer: Transfer, *, owner: str, lease: timedelta) -> ClaimedTransfer | None:
        """Record a transfer in `copying`; None when the same one has not ended."""
        ...

    async def claim_same(
        self, digests: Sequence[bytes], *, owner: str, lease: timedelta
    ) -> tuple[bool, ClaimedTransfer | None]:
        """Whether a transfer of one of these digests has not ended, and that one, if no living process has it."""
        ...

    async def claim_orphans(self, *, owner: str, lease: timedelta) -> Sequence[ClaimedTransfer]:
        """Take over some transfers of processes that are gone."""
        ...

    async def renew(self, lease: TransferLease, *, lasting: timedelta) -> bool:
        """Keep the lease."""
        ...

    async def release(self, lease: TransferLease, *, again_after: timedelta | None) -> bool:
        """Leave it to whoever comes after that time; None: to the user, who calls again."""
        ...

    async def advance(self, lease: TransferLease, state: TransferState) -> bool:
        """Record a state; `done`, `rolled_back` and `failed` end the transfer and forget its keys."""
        ...

    async def add_keys(self, lease: TransferLease, keys: Sequence[TransferKey]) -> bool:
        """Record entries of the source."""
        ...

    async def keys(
        self,
        transfer_id: UUID,
        *,
        kind: EntryKind,
        states: Sequence[KeyState],
        limit: int,
        after: int | None = None,
        backwards: bool = False,
    ) -> Sequence[TransferKey]:
        """Entries behind the number `after`, in order of numbers, or in the opposite one."""
        ...

    async def count(self, transfer_id: UUID, states: Sequence[KeyState]) -> int:
        """How many entries are in one of these states."""
        ...

    async def mark(self, lease: TransferLease, numbers: Sequence[int], state: KeyState) -> bool:
        """Record how far entries are."""
        ...
