"""How many named sessions are open, by connector and by user: each holds a connection, also while it is idle."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from queryserver.domain.errors.base import too_many_sessions
from queryserver.services.running.held_sessions import HeldSessions


class SessionShares:
    """`per_connector` named sessions of one process, at most half of them of one user.

    Of the last quarter a user gets no more than an equal share: what each would have if one more user came.
    """

    def __init__(self, held: HeldSessions, *, per_connector: int) -> None:
        self._held = held
        self._per_connector = per_connector
        self._opening: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def opening(self, connector: str, user_id: int, *, max_open: int) -> Generator[None]:
        """Around the opening of one more session of a user, who may have `max_open` in all.

        Sessions that are being opened count: a connection exists before its record does. Raises too_many_sessions.
        """
        self._require_share(connector, user_id, max_open=max_open)
        key = (connector, user_id)
        self._opening[key] += 1
        try:
            yield
        finally:
            self._opening[key] -= 1
            if not self._opening[key]:
                del self._opening[key]

    def _require_share(self, connector: str, user_id: int, *, max_open: int) -> None:
        open_here = self._opening + self._held.named()
        own = sum(count for (_, owner), count in open_here.items() if owner == user_id)
        if own >= max_open:
            raise too_many_sessions(f"{max_open} sessions of yours are open. Close some of them.")
        by_user = {owner: count for (key, owner), count in open_here.items() if key == connector}
        taken = sum(by_user.values())
        if taken >= self._per_connector:
            raise too_many_sessions(f"All {self._per_connector} sessions of this connector are in use.")
        share = self._per_connector // 2
        if taken >= self._per_connector - self._per_connector // 4:
            share = self._per_connector // (len(by_user.keys() | {user_id}) + 1)
        if by_user.get(user_id, 0) >= max(share, 1):
            raise too_many_sessions(
                f"{by_user[user_id]} sessions of yours are open on this connector, the share of one user."
                " Close some of them."
            )
