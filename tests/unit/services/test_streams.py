"""Places of long calls: how many there are, and when their users are read again."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from queryserver.errors.base import (
    DatabaseUnavailable,
    InvalidToken,
    PermissionDenied,
    TooManyStreams,
    UserInactive,
    UserNotFound,
)
from queryserver.identity.callers import Standing, Streams
from queryserver.identity.model import User
from queryserver.identity.repository import TokenKey, TokenOwner

ANA = User(1, "ana", rights=frozenset({"download"}), token_ids=("family", "jti"), token_epoch=3)


@dataclass
class Records:
    """Only `owner` of `TokenRepository`, and a clock beside it."""

    owner_now: TokenOwner | None
    is_down: bool = False
    now: float = 0
    asked: list[TokenKey] = field(default_factory=list)

    async def owner(self, token: TokenKey) -> TokenOwner | None:
        self.asked.append(token)
        if self.is_down:
            raise DatabaseUnavailable
        return self.owner_now

    def clock(self) -> float:
        return self.now


def owner(
    *, is_active: bool = True, epoch: int = 3, is_revoked: bool = False, rights: tuple[str, ...] = ()
) -> TokenOwner:
    return TokenOwner(User(1, "ana", rights=frozenset(rights)), is_active, epoch, is_revoked)


def streams_of(records: Records, most: int = 2) -> Streams:
    return Streams(most, Standing(records), every=timedelta(seconds=5), clock=records.clock)  # type: ignore[arg-type]


def require_download(user: User) -> None:
    if not user.may("download"):
        raise PermissionDenied("no")


async def test_a_user_is_read_again_once_in_the_time() -> None:
    records = Records(owner(rights=("download",)))
    with streams_of(records).place(ANA) as place:
        for records.now in (0, 4.9, 5, 5.1, 9.9, 10):
            await place.recheck(require_download)
    assert records.asked == [TokenKey(1, "family", "jti")] * 2


@pytest.mark.parametrize(
    ("now", "error"),
    [
        (None, UserNotFound),
        (owner(is_active=False), UserInactive),
        (owner(is_revoked=True), InvalidToken),
        (owner(epoch=4), InvalidToken),
        (owner(rights=()), PermissionDenied),
    ],
    ids=["deleted", "disabled", "logged out", "all tokens ended", "demoted"],
)
async def test_who_may_not_go_on_is_stopped(now: TokenOwner | None, error: type[Exception]) -> None:
    records = Records(now)
    with streams_of(records).place(ANA) as place:
        records.now = 5
        with pytest.raises(error):
            await place.recheck(require_download)


async def test_a_caller_without_a_token_of_ours_has_no_epoch_to_lose() -> None:
    records = Records(owner(epoch=9))
    with streams_of(records).place(User(1, "ana")) as place:
        records.now = 5
        await place.recheck()
    assert records.asked == [TokenKey(1, "", "")]


async def test_while_the_database_is_away_a_call_goes_on() -> None:
    records = Records(None, is_down=True)
    with streams_of(records).place(ANA) as place:
        records.now = 5
        await place.recheck(require_download)
    assert len(records.asked) == 1


async def test_pieces_end_and_their_source_is_closed() -> None:
    records = Records(owner(is_active=False))
    is_closed = False

    async def source() -> AsyncGenerator[bytes]:
        nonlocal is_closed
        try:
            while True:
                yield b"piece"
                records.now += 3
        finally:
            is_closed = True

    seen: list[bytes] = []
    with streams_of(records).place(ANA) as place, pytest.raises(UserInactive):
        seen.extend([piece async for piece in place.rechecked(source())])
    assert is_closed


async def test_places_are_bounded_and_given_back() -> None:
    streams = streams_of(Records(owner()), most=1)
    for _ in range(2):
        with streams.place(ANA), pytest.raises(TooManyStreams), streams.place(ANA):
            pass
