"""`qs share`, `qs unshare` and `qs shares`: results shared with other users and groups."""

import datetime as dt
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from queryserver_client.cli.failures import WrongUse
from queryserver_client.cli.forms import Form
from queryserver_client.cli.operations import show, stored_id, utc_text

if TYPE_CHECKING:
    from queryserver_client.shares import Shares
    from queryserver_client.sync import Connection

_DURATION = re.compile(r"([1-9][0-9]{0,4})([hd])")


def share(
    db: "Connection", given: str, *, users: Sequence[str], groups: Sequence[str], until: str | None, title: str
) -> None:
    """Share a result and print its link."""
    if not (users or groups):
        raise WrongUse("-u or -g is required")
    statement = db.statement(stored_id(db, given))
    print(statement.share(users=users, groups=groups, until=_end_of(until), title=title).link)


def unshare(db: "Connection", given: str, *, users: Sequence[str], groups: Sequence[str]) -> None:
    """End shares of a result, by default all, and print how many ended."""
    changed = db.statement(stored_id(db, given)).unshare(users=users, groups=groups).changed
    print(f"{changed} {'share' if changed == 1 else 'shares'} ended")


def show_shares(db: "Connection", given: str | None, form: Form | None) -> None:
    """List who may read a result or, without an id, the results that others share with the user."""
    if given is not None:
        _show_readers(db.statement(stored_id(db, given)).shares(), form)
        return
    names = ["id", "title", "shared_by", "state", "rows", "until", "expires_at"]
    records = [
        [one.operation_id, one.title, one.shared_by, one.state, one.rows, _text(one.until), _text(one.expires_at)]
        for one in db.shared_with_me()
    ]
    show(names, records, form)


def _show_readers(found: "Shares", form: Form | None) -> None:
    names = ["user", "group", "title", "until"]
    show(names, [[one.user, one.group, one.title, _text(one.until)] for one in found.entries], form)


def _text(moment: dt.datetime | None) -> str | None:
    return None if moment is None else utc_text(moment)


def _end_of(text: str | None) -> dt.datetime | None:
    """Parse `12h`, `7d` or a local time such as `2026-05-31`. Raises WrongUse."""
    if text is None:
        return None
    if found := _DURATION.fullmatch(text):
        hours = int(found[1]) * (24 if found[2] == "d" else 1)
        return dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=hours)
    try:
        return dt.datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise WrongUse(f"--until {text}: use 12h, 7d or a time such as 2026-05-31T18:00") from None
