"""The queue in a real Valkey: waking workers, and the effects of losing the broker (Contract platform 10.2)."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError
from redis.asyncio import Redis
from structlog.testing import capture_logs
from tests.fixtures.valkey import guarded_valkey, with_broker
from tests.unit.statements.driving import until

from queryserver.platform.embedded.companions import ValkeyServer
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.tasks.broker import RedisBroker

STATEMENT = UUID("4be0c3f2-6a0e-4d3c-9a2b-0d8f5b8f1c11")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_CALL_WITHIN_S", "_CONNECT_WITHIN_S"):
        monkeypatch.setattr(f"queryserver.tasks.broker.{limit}", 60.0)


@pytest.fixture
async def broker(task_server: TaskServerSettings) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(task_server)
    async with broker.running():
        await until(lambda: broker.is_reachable is True)
        yield broker


class Taker:
    """A worker that records the jobs it takes."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.room = 100

    async def take(self, job: str) -> None:
        self.jobs.append(job)

    @asynccontextmanager
    async def at_work(self, settings: TaskServerSettings) -> AsyncIterator[None]:
        broker = RedisBroker(settings)
        serving = asyncio.create_task(broker.serve({"statement": self.take}, free_slots=lambda: self.room))
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


class BusyTaker(Taker):
    """A worker whose jobs last until `may_end` is set. A worker that is stopped waits for its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def take(self, job: str) -> None:
        await super().take(job)
        await self.may_end.wait()


async def queued(settings: TaskServerSettings) -> int:
    """Return the number of jobs that no worker has taken yet."""
    async with Redis.from_url(settings.broker_url.get_secret_value()) as redis:
        return await redis.zcard(settings.queue)


async def test_job_contains_statement_and_fence(broker: RedisBroker, task_server: TaskServerSettings) -> None:
    taker = Taker()
    async with taker.at_work(task_server):
        broker.statement_waits(STATEMENT, fence=3)
        await until(lambda: bool(taker.jobs))
    assert taker.jobs == [f"stmt:{STATEMENT}:3"]


async def test_repeated_announcement_is_one_job(broker: RedisBroker, task_server: TaskServerSettings) -> None:
    for _ in range(5):
        broker.statement_waits(STATEMENT, fence=0)
    other = uuid4()
    broker.statement_waits(other, fence=0)
    await until_queued(task_server, 2)
    taker = Taker()
    async with taker.at_work(task_server):
        await until(lambda: len(taker.jobs) == 2)
        assert sorted(taker.jobs) == sorted([f"stmt:{STATEMENT}:0", f"stmt:{other}:0"])
        # A job may be announced again after it has finished; the statement's record determines what remains to be done.
        await until_queued(task_server, 0)
        broker.statement_waits(STATEMENT, fence=0)
        await until(lambda: len(taker.jobs) == 3)


async def test_each_job_wakes_one_worker(broker: RedisBroker, task_server: TaskServerSettings) -> None:
    takers = [Taker(), Taker()]
    async with takers[0].at_work(task_server), takers[1].at_work(task_server):
        for _ in range(200):
            broker.statement_waits(uuid4(), fence=0)
        await until(lambda: sum(len(one.jobs) for one in takers) >= 200)
        await until_queued(task_server, 0)
    jobs = [job for one in takers for job in one.jobs]
    assert len(jobs) == len(set(jobs)) == 200


async def test_full_worker_does_not_take_jobs(broker: RedisBroker, task_server: TaskServerSettings) -> None:
    full, free = Taker(), Taker()
    full.room = 0
    async with full.at_work(task_server):
        broker.statement_waits(STATEMENT, fence=0)
        await until_queued(task_server, 1)
        async with free.at_work(task_server):
            await until(lambda: bool(free.jobs))
    assert full.jobs == []


async def test_worker_takes_at_most_as_many_jobs_as_it_has_free_slots(
    broker: RedisBroker, task_server: TaskServerSettings
) -> None:
    for _ in range(3):
        broker.statement_waits(uuid4(), fence=0)
    await until_queued(task_server, 3)
    busy, free = BusyTaker(), Taker()
    busy.room = 1
    async with busy.at_work(task_server):
        await until(lambda: bool(busy.jobs))
        async with free.at_work(task_server):
            await until(lambda: len(busy.jobs) + len(free.jobs) == 3)
        assert len(busy.jobs) == 1
        busy.may_end.set()


async def test_job_is_taken_immediately_by_a_worker_with_a_free_slot(
    task_server: TaskServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' polling interval is longer than this test, so polling cannot start the job."""
    monkeypatch.setattr("queryserver.tasks.broker._POLL_S", 300)
    monkeypatch.setattr("queryserver.tasks.broker._CALL_WITHIN_S", 600)
    full, free, broker = Taker(), Taker(), RedisBroker(task_server)
    full.room = 0
    async with broker.running(), full.at_work(task_server), free.at_work(task_server):
        for number in range(20):
            broker.statement_waits(uuid4(), fence=0)
            await until(lambda wanted=number + 1: len(free.jobs) == wanted)
    assert full.jobs == []


async def test_job_with_a_lost_token_is_taken(broker: RedisBroker, task_server: TaskServerSettings) -> None:
    broker.statement_waits(STATEMENT, fence=0)
    tokens = f"{task_server.queue}:tokens"
    async with Redis.from_url(task_server.broker_url.get_secret_value()) as redis, asyncio.timeout(60):
        while not await redis.delete(tokens):  # noqa: ASYNC110 as in `until_queued`
            await asyncio.sleep(0.01)
    taker = Taker()
    async with taker.at_work(task_server):
        await until(lambda: bool(taker.jobs))


async def test_failed_job_is_logged_and_not_repeated(broker: RedisBroker, task_server: TaskServerSettings) -> None:
    taker = Taker()

    async def fail(job: str) -> None:
        await taker.take(job)
        raise RuntimeError("planted")

    serving = asyncio.create_task(RedisBroker(task_server).serve({"statement": fail}, free_slots=lambda: 1))
    with capture_logs() as logs:
        broker.statement_waits(STATEMENT, fence=0)
        await until(lambda: bool(taker.jobs))
        await until_queued(task_server, 0)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert len(taker.jobs) == 1
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["job failed"]


@pytest.mark.platform(103)
async def test_sender_worker_and_listener_resume_after_a_broker_outage(
    broker: RedisBroker, task_server: TaskServerSettings, valkey: ValkeyServer
) -> None:
    taker, changed = Taker(), set[UUID]()
    async with taker.at_work(task_server), broker.listening(changed.add):
        await repeated(lambda: broker.statement_waits(STATEMENT, fence=0), lambda: bool(taker.jobs))
        await repeated(lambda: broker.statement_changed(STATEMENT), lambda: STATEMENT in changed)
        await valkey.stop()
        # The calls neither wait nor fail. The first message is lost in transit; later ones are dropped immediately.
        missed = uuid4()
        for fence in (1, 2):
            broker.statement_waits(STATEMENT, fence=fence)
        broker.statement_changed(missed)
        await until(lambda: broker.is_reachable is False)
        await valkey.start()
        after = uuid4()
        await repeated(lambda: broker.statement_waits(after, fence=0), lambda: f"stmt:{after}:0" in taker.jobs)
        await repeated(lambda: broker.statement_changed(after), lambda: after in changed)
    assert f"stmt:{STATEMENT}:2" not in taker.jobs
    assert missed not in changed


async def test_broker_password_may_contain_special_characters() -> None:
    async with guarded_valkey(password="p/a?s#s@w:%") as url:
        settings, taker = with_broker(url), Taker()
        broker = RedisBroker(settings)
        async with broker.running(), taker.at_work(settings):
            broker.statement_waits(STATEMENT, fence=0)
            await until(lambda: bool(taker.jobs))


async def test_changes_reach_every_server(broker: RedisBroker, task_server: TaskServerSettings) -> None:
    heard: list[set[UUID]] = [set(), set()]
    others = [RedisBroker(task_server) for _ in heard]
    async with others[0].listening(heard[0].add), others[1].listening(heard[1].add):
        await repeated(lambda: broker.statement_changed(STATEMENT), lambda: all(STATEMENT in one for one in heard))


async def test_job_is_due_regardless_of_clock_differences(broker: RedisBroker, task_server: TaskServerSettings) -> None:
    taker = Taker()
    broker.statement_waits(STATEMENT, fence=0)
    await until_queued(task_server, 1)
    async with Redis.from_url(task_server.broker_url.get_secret_value()) as redis:
        [(_, due_ms)] = await redis.zrange(task_server.queue, 0, -1, withscores=True)
    assert due_ms < 10**12, "a worker whose clock is behind that of the server would wait"
    async with taker.at_work(task_server):
        await until(lambda: bool(taker.jobs))


async def until_queued(settings: TaskServerSettings, number: int) -> None:
    """Wait until the queue contains exactly `number` jobs."""
    async with asyncio.timeout(60):
        while await queued(settings) != number:  # noqa: ASYNC110 no event reports this state
            await asyncio.sleep(0.01)


async def repeated(call: Callable[[], None], holds: Callable[[], bool]) -> None:
    """Repeat the call until the condition holds, because messages sent before the listener is ready are lost."""
    async with asyncio.timeout(60):
        while not holds():
            call()
            await asyncio.sleep(0.05)


async def test_unresponsive_broker_leaves_no_open_connection() -> None:
    """After the first cancel, redis-py would open another connection to send UNWATCH to the broker.

    If a connection is not released, its garbage collection issues a warning.
    """
    asked, ended, opened = asyncio.Event(), asyncio.Event(), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        with closing(writer):
            while command := await reader.read(4096):
                if b"EXISTS" in command:
                    asked.set()
                if asked.is_set():
                    await ended.wait()
                # Send one response for each command in the packet.
                writer.write((b"+PONG\r\n" if b"PING" in command else b"+OK\r\n") * command.count(b"*"))

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        broker = RedisBroker(TaskServerSettings.model_validate({"broker_url": f"redis://127.0.0.1:{port}"}))
        try:
            async with broker.running():
                broker.statement_waits(STATEMENT, fence=0)
                await asyncio.wait_for(asked.wait(), 60)
        finally:
            ended.set()
    gc.collect()
    assert opened == 1


def test_address_with_an_invalid_port_is_rejected_without_its_text():
    with pytest.raises(ValidationError) as caught:
        TaskServerSettings.model_validate({"broker_url": "redis://:top/secretpw@h:6379/0"})
    problems = str(caught.value.errors(include_input=False, include_context=False))
    assert "%2F" in problems
    assert "top" not in problems
    assert "secretpw" not in problems
