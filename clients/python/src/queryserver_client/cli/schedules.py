"""`qs schedule`: creates, changes, lists, shows, runs, pauses and deletes schedules, and lists their runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.copies import destination_of
from queryserver_client.cli.documents import uuid_of
from queryserver_client.cli.failures import WrongUse, say, visible
from queryserver_client.cli.forms import Form, IfExists, OptionalField, Outcome
from queryserver_client.cli.operations import show
from queryserver_client.cli.parameters import given_text, moment_of, parameters_of, seconds_of

if TYPE_CHECKING:
    from queryserver_client.generated import Schedule, ScheduleRun
    from queryserver_client.sync import Connection

_NAMES = ["id", "name", "enabled", "owner", "times", "next_run", "last_run", "last_status", "runs", "statement"]

_RUN_NAMES = ["due", "status", "ended", "id", "message"]


@dataclass(frozen=True)
class Work:
    """The arguments that say what a schedule runs."""

    statement: str | None
    file: Path | None
    document: str | None
    task: str | None
    parameters: Sequence[str] | None
    into: str | None
    if_exists: IfExists | None

    def fields(self, db: "Connection") -> "dict[str, Any]":
        """Return the given fields. What runs takes the place of everything else that could run. Raises WrongUse."""
        text = given_text(self.statement, self.file)
        if sum(given is not None for given in (text, self.document, self.task)) > 1:
            raise WrongUse("use only one of a statement, --document and --task")
        found: dict[str, Any] = {}
        if text is not None:
            found = {"statement": text, "document": None}
        if self.document is not None:
            found = {"document": uuid_of(db, self.document), "statement": None}
        if self.task is not None:
            found = {"task": self.task, "kind": "task"}
        values = parameters_of(self.parameters or ())
        if self.task is not None and isinstance(values, list):
            raise WrongUse("parameters of a task must have the form -p name=value")
        if values is not None:
            found["params" if self.task is not None else "parameters"] = values
        if self.into is not None:
            found["into"] = destination_of(self.into, self.if_exists)
        elif self.if_exists is not None:
            raise WrongUse("--if-exists requires --into")
        return found


@dataclass(frozen=True)
class Notice:
    """The arguments that say who is notified."""

    mails: Sequence[str] | None
    webhook: str | None
    outcomes: Sequence[Outcome] | None
    attach_csv: bool

    def fields(self) -> "dict[str, Any]":
        """Return the given fields. Raises WrongUse."""
        if not self.mails and self.webhook is None:
            if self.outcomes or self.attach_csv:
                raise WrongUse("--on and --attach-csv require --mail or --webhook")
            return {}
        notify: dict[str, Any] = {"to": list(self.mails or ()), "url": self.webhook, "attach_csv": self.attach_csv}
        return {"notify": {**notify, "on": [one.value for one in self.outcomes]} if self.outcomes else notify}


@dataclass(frozen=True)
class Changes:
    """The arguments of `qs schedule add` and `change`."""

    work: Work
    notice: Notice
    every: str | None
    until: str | None
    given: "dict[str, Any]"
    """Further fields; those that are None were not given."""
    unset: Sequence[OptionalField] = ()

    def fields(self, db: "Connection") -> "dict[str, Any]":
        """Return the fields to send. Raises WrongUse."""
        found = {name: value for name, value in self.given.items() if value is not None}
        if (overlap := found.get("overlap")) is not None:
            found["overlap"] = overlap.value
        if self.every is not None and "cron" in found:
            raise WrongUse("use only one of --cron and --every")
        if "cron" in found:
            found["interval_s"] = None
        if self.every is not None:
            found |= {"interval_s": seconds_of("--every", self.every), "cron": None}
        if self.until is not None:
            found["expires_at"] = moment_of("--until", self.until)
        found |= {**self.work.fields(db), **self.notice.fields()}
        for field in self.unset:
            if found.get(field.value) is not None:
                raise WrongUse(f"--unset {field.value}: the command also sets it")
            found[field.value] = None
        return found


def add(db: "Connection", name: str, changes: Changes) -> None:
    """Create a schedule, and print its number and next time."""
    fields = changes.fields(db)
    if not fields.keys() & {"statement", "document", "task"}:
        raise WrongUse("a statement, -f, --document or --task is required")
    if not fields.keys() & {"cron", "interval_s"}:
        raise WrongUse("--cron or --every is required")
    _print_times(db.schedules.create(name, **fields))
    _warn_without_scheduler(db)


def change(db: "Connection", given: str, changes: Changes) -> None:
    """Change a schedule, unless another user changes it at the same time. Print its number and next time."""
    fields = changes.fields(db)
    if not fields:
        raise WrongUse("there is nothing to change")
    stored = _found(db, given)
    if stored["kind"] == "task" and fields.keys() & {"statement", "document"}:
        fields["kind"] = "statement"
    _print_times(db.schedules.update(stored["id"], version=stored["version"], **fields))


def show_list(db: "Connection", form: Form | None, *, owner: str | None, is_enabled: bool | None) -> None:
    show(_NAMES, [_record(one) for one in db.schedules.list(owner=owner, is_enabled=is_enabled)], form)
    _warn_without_scheduler(db)


def show_schedule(db: "Connection", given: str, *, as_json: bool) -> None:
    """Print the fields of a schedule that have a value or, if `as_json` is set, everything."""
    found = _found(db, given)
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for name, value in found.items():
        if value not in (None, "", {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            print(f"{name}: " + visible(text, keep="\n\t"))


def run(db: "Connection", given: str) -> None:
    """Run a schedule now, and print the id of the run."""
    print(db.schedules.run(_found(db, given)["id"]))


def show_runs(db: "Connection", given: str, form: Form | None, *, most: int) -> None:
    """Print the newest `most` runs of a schedule."""
    found = db.schedules.runs(_found(db, given)["id"], limit=most)
    show(_RUN_NAMES, [_run_record(run) for run in found], form)


def pause(db: "Connection", given: Sequence[str]) -> None:
    for one in given:
        db.schedules.pause(_found(db, one)["id"])


def resume(db: "Connection", given: Sequence[str]) -> None:
    """Resume schedules, and print their numbers and next times."""
    for one in given:
        _print_times(db.schedules.resume(_found(db, one)["id"]))


def delete(db: "Connection", given: Sequence[str]) -> None:
    for one in given:
        db.schedules.delete(_found(db, one)["id"])


def _found(db: "Connection", given: str) -> "Schedule":
    """Return a schedule; `given` is its number or its name in any case. Raises WrongUse and NotFound."""
    if given.isdecimal():
        return db.schedules.get(int(given))
    for schedule in db.schedules.list():
        if schedule["name"].lower() == given.lower():
            return schedule
    raise WrongUse(f"there is no schedule named {given}")


def _record(schedule: "Schedule") -> "list[Any]":
    given = {**schedule, "times": _times(schedule), "runs": schedule["total_runs"], "statement": _work(schedule)}
    return [given[name] for name in _NAMES]


def _run_record(run: "ScheduleRun") -> "list[Any]":
    status = run["status"] or "running"
    return [run["due"], status, run["ended"], run["history_uuid"] or run["task_id"], run["message"]]


def _work(schedule: "Schedule") -> str:
    if schedule["kind"] == "task":
        return f"task {schedule['task']}"
    return schedule["statement"] or f"document {schedule['document']}"


def _times(schedule: "Schedule") -> str:
    if schedule["cron"] is None:
        return f"every {schedule['interval_s']}s"
    return f"{schedule['cron']} {schedule['timezone']}"


def _print_times(schedule: "Schedule") -> None:
    print(f"{schedule['id']}  next run {schedule['next_run'] or 'never'}")


def _warn_without_scheduler(db: "Connection") -> None:
    if not db.schedules.beat_is_running():
        say("no scheduler (queryserver beat) is running, so schedules do not run")
