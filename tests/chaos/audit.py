"""After a run, compares the clients' ledger with the service database, the target table and the stored results."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from tests.chaos.clients import ACTIVE, READABLE, Caller, Entry, GaveUp, Ledger, read_all
from tests.chaos.fleet import LEASE_S, STATEMENT_LIMIT_S, Fleet, until
from tests.e2e.installation import query

SETTLES_WITHIN_S = LEASE_S + 15 + STATEMENT_LIMIT_S
_READERS = 16
_SHOWN = 20
FAULTS = {
    "lost": "results lost: available, within their time, not readable",
    "wrong": "results that were wrong, or not readable for a while without 503",
    "twice": "statements carried out twice",
    "missing": "inserts said to have succeeded whose row is missing",
    "contradicted": "inserts said to have failed or been canceled whose row is there",
    "changed": "ends that clients were told and that are others in the database",
    "unknown": "statements that the database does not know",
    "endless": "statements without an end",
    "given_up": "clients without a final answer",
    "http_500": "HTTP 500s",
    "unforeseen": "other answers that no rule foresees",
}


@dataclass
class Audit:
    """The findings of an audit: its faults by kind, and how often each outcome occurred. A successful run has no
    faults.
    """

    faults: dict[str, list[Mapping[str, Any]]] = field(default_factory=lambda: {name: [] for name in FAULTS})
    outcomes: Counter[str] = field(default_factory=Counter)
    settled: bool = True

    @property
    def clean(self) -> bool:
        return not any(self.faults.values())

    def add(self, fault: str, entry: Entry, **facts: object) -> None:
        """Record a fault of one statement, with all facts that an investigation needs."""
        self.faults[fault].append(asdict(entry) | {"facts": {name: str(value) for name, value in facts.items()}})


async def audit(fleet: Fleet, ledger: Ledger, callers: Mapping[str, Caller]) -> Audit:
    """Wait until no statement is active. Then compare all entries of the ledger, and read all results again."""
    found = Audit()
    try:
        await until(lambda: _nothing_active(fleet), SETTLES_WITHIN_S)
    except TimeoutError:
        found.settled = False
    records = {str(row["id"]): row for row in await _rows(fleet.service_dsn, _RECORDS)}
    done = {str(row["token"]): int(row["times"]) for row in await _rows(fleet.target_dsn, _DONE)}
    for entry in ledger.entries:
        compare(found, entry, records.get(entry.operation), done.get(entry.token, 0))
    for record in records.values():
        found.outcomes["any: claimed more than once"] += record["fence"] > 1
        if record["state"] in ACTIVE:
            found.faults["endless"].append({name: str(value) for name, value in dict(record).items()})
    await _read_again(found, ledger.entries, callers)
    for fault in ledger.faults:
        found.faults["http_500" if fault["status"] == "500" else "unforeseen"].append(fault)
    return found


_RECORDS = """select id, state, error_code, message, owner, fence, recorded_at, sent_at, ended_at, deadline_at,
    cancel_requested_at, rows, inline_result is not null as is_inline from statements"""
_DONE = "select token, count(*) as times from done group by token"


async def _nothing_active(fleet: Fleet) -> bool:
    sql = "select count(*) from statements where state in ('waiting', 'running')"
    return await query(fleet.service_dsn, sql) == 0


async def _rows(dsn: str, sql: str) -> Sequence[asyncpg.Record]:
    connection = await asyncpg.connect(dsn, timeout=60, command_timeout=60)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close(timeout=60)


def compare(found: Audit, entry: Entry, record: Mapping[str, Any] | None, times: int) -> None:
    """Compare the outcome that a statement's client received, the statement's record, and the number of rows with its
    token in the target table.
    """
    state = str(record["state"]) if record else "not submitted"
    code = str(record["error_code"] or "") if record else ""
    found.outcomes[f"{entry.kind}: {code or state}"] += 1
    facts = {**dict(record or {}), "times": times}
    if times > 1:
        found.add("twice", entry, **facts)
    if entry.operation and record is None:
        found.add("unknown", entry, **facts)
    if record and entry.state not in {*ACTIVE, "not submitted", state}:
        found.add("changed", entry, **facts)
    if entry.kind in {"insert", "cancel"}:
        if state in {"success", "available"} and times == 0:
            found.add("missing", entry, **facts)
        if times and record and state not in {"success", "available", *ACTIVE} and code != "outcome_unknown":
            found.add("contradicted", entry, **facts)
    if any(problem.startswith("gave up") for problem in entry.problems):
        found.add("given_up", entry, **facts)
    elif entry.problems:
        found.add("wrong", entry, **facts)


async def _read_again(found: Audit, entries: Sequence[Entry], callers: Mapping[str, Caller]) -> None:
    """Read every available result again, from its first to its last row."""
    places = asyncio.Semaphore(_READERS)

    async def read(entry: Entry) -> None:
        again = Entry(entry.kind, entry.user, entry.token, operation=entry.operation, state=READABLE)
        again.factor, again.rows = entry.factor, entry.rows
        async with places:
            try:
                await read_all(callers[entry.user], again)
            except (GaveUp, KeyError, ValueError) as error:
                again.problems.append(repr(error))
        if again.problems:
            found.add("lost", again)

    await asyncio.gather(*(read(entry) for entry in entries if entry.state == READABLE and entry.rows))


def written(found: Audit, ledger: Ledger, setting: Mapping[str, Any], folder: Path) -> str:
    """Return the report as a string. Store it in the folder, together with all facts as JSON."""
    lines = [", ".join(f"{name} {value}" for name, value in setting.items() if name != "disturbances"), ""]
    lines += [f"{len(found.faults[name]):>6}  {text}" for name, text in FAULTS.items()]
    lines += ["", f"{len(ledger.entries):>6}  statements; settled in time: {'yes' if found.settled else 'no'}"]
    lines += [f"{count:>6}  {outcome}" for outcome, count in sorted(found.outcomes.items())]
    lines += ["", "Answers, and calls without one:"]
    lines += [f"{count:>6}  {answer}" for answer, count in sorted(ledger.answers.items())]
    lines += ["", "Disturbances:"]
    lines += [
        f"  {one['from'][11:19]} to {one['until'][11:19]} {one['what']}: {one['details']}"
        for one in setting["disturbances"]
    ]
    for name, cases in found.faults.items():
        lines += ["", f"{FAULTS[name]}:"] if cases else []
        lines += [f"  {json.dumps(case, default=str)}" for case in cases[:_SHOWN]]
    lines += ["", f"{'The ledger is clean.' if found.clean else 'The ledger is not clean.'} All facts: {folder}"]
    text = "\n".join(lines)
    (folder / "report.txt").write_text(f"{text}\n")
    facts = {**setting, "clean": found.clean, "outcomes": found.outcomes, "answers": ledger.answers}
    facts |= {"faults": found.faults, "ledger": [asdict(entry) for entry in ledger.entries]}
    (folder / "report.json").write_text(json.dumps(facts, indent=1, default=str))
    return text
