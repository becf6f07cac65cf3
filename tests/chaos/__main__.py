"""Disturbs a whole fleet under load, and then verifies that no statement was lost or executed twice.

`make chaos` takes ten minutes. `make chaos ARGS="--minutes 2 --clients 30 --seed 7"` changes the defaults. The exit
code is 1 if the audit finds any fault. The report, all facts as JSON and the processes' logs are stored in
chaos-results/.
"""

import argparse
import asyncio
import sys
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random, SystemRandom

import httpx
import uvloop
from tests.chaos.audit import audit, written
from tests.chaos.clients import Caller, Client, Ledger
from tests.chaos.disturbances import Disturbances
from tests.chaos.fleet import running_fleet

_CLIENTS_OF_A_USER = 10
_RESULTS = Path("chaos-results")


async def chaos(minutes: float, clients: int, seed: int) -> bool:
    """Run the chaos test and print its report. Returns whether the audit found no fault."""
    folder = _RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    logs = folder.resolve() / "logs"
    logs.mkdir(parents=True)
    users = [f"user{number}" for number in range(-(-clients // _CLIENTS_OF_A_USER))]
    ledger, random = Ledger(), Random(seed)
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(running_fleet(logs, users))
        limits = httpx.Limits(max_connections=clients * 2, max_keepalive_connections=clients)
        servers = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=90, limits=limits))
            for url in fleet.addresses
        ]
        front = "nginx" if len(fleet.addresses) == 1 else "the servers in turns, by the clients"
        print(f"The fleet runs behind {front}; seed {seed}; logs in {logs}", flush=True)

        def caller(user: str) -> Caller:
            headers = {"Authorization": f"Bearer {fleet.tokens[user]}"}
            return Caller(user, headers, servers, ledger, Random(random.random()))

        ends_at = time.monotonic() + minutes * 60
        disturbances = Disturbances(fleet, Random(seed))
        async with asyncio.TaskGroup() as running:
            running.create_task(disturbances.run(ends_at))
            for number in range(clients):
                running.create_task(Client(caller(users[number % len(users)]), ends_at).run())
        print("All disturbances have ended; the ledger is compared.", flush=True)
        again = sum(member.starts_again for member in fleet.members)
        found = await audit(fleet, ledger, {user: caller(user) for user in users})
    setting = {"minutes": minutes, "clients": clients, "seed": seed, "front": front, "started again": again}
    setting["disturbances"] = disturbances.log
    print(written(found, ledger, setting, folder))
    return found.clean


def main() -> None:
    """Run the chaos test with the command-line arguments, and exit."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1_000_000))
    chosen = parser.parse_args()
    sys.exit(0 if uvloop.run(chaos(chosen.minutes, chosen.clients, chosen.seed)) else 1)


if __name__ == "__main__":
    main()
