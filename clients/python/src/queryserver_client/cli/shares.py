"""`qs result`, `qs share`, `qs unshare` and `qs shares`: stored results, which can be shared with users and groups."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from queryserver_client.cli.failures import FAILED, WrongUse, say, text_of
from queryserver_client.cli.forms import Form
from queryserver_client.cli.operations import readable_id, show, stored_id, utc_text
from queryserver_client.cli.output import form_of
from queryserver_client.cli.parameters import moment_of
from queryserver_client.cli.sql import put
from queryserver_client.errors import StatementError

if TYPE_CHECKING:
    from queryserver_client.shares import Shares
    from queryserver_client.sync import Connection


def share(
    db: "Connection", given: str, *, users: Sequence[str], groups: Sequence[str], until: str | None, title: str
) -> None:
    """Share a result and print its link."""
    if not (users or groups):
        raise WrongUse("-u or -g is required")
    statement = db.statement(stored_id(db, given))
    print(statement.share(users=users, groups=groups, until=moment_of("--until", until), title=title).link)


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


def show_result(db: "Connection", given: str, output: Form | None, to: Path | None, *, is_expanded: bool) -> int:
    """Print a stored result, which is kept. Return the exit code."""
    form = form_of(output, to)
    try:
        found = db.open_shared(readable_id(db, given), allow_truncated=True).result()
    except StatementError as error:
        say(text_of(error))
        return FAILED
    if not found.has_rows:
        raise WrongUse(f"{given}: the statement has no result set")
    return put(db, found, form, to, is_expanded=is_expanded)


def _show_readers(found: "Shares", form: Form | None) -> None:
    names = ["user", "group", "title", "until"]
    show(names, [[one.user, one.group, one.title, _text(one.until)] for one in found.entries], form)


def _text(moment: dt.datetime | None) -> str | None:
    return None if moment is None else utc_text(moment)
