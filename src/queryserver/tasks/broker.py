"""The fleet's job queue in Redis or Valkey, based on arq (Contract platform 10.2).

The queue only wakes processes. The work itself is recorded in the service database, where sweeps also find it. A job
therefore carries nothing but the id of a record: losing a job costs seconds, and a duplicate job finds nothing to do.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import CoroutineType
from typing import Any, TypeAlias
from uuid import UUID

import orjson
import structlog
from arq.connections import ArqRedis
from arq.worker import Worker, func
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from queryserver.administration.readiness import broker_connections
from queryserver.platform.settings.sections import TaskServerSettings

log = structlog.get_logger(__name__)
# At level INFO, arq logs every job.
logging.getLogger("arq").setLevel(logging.WARNING)

_CONNECTION_ERRORS = (RedisError, OSError, TimeoutError)
_RETRY_S = 1.0
_CONNECT_WITHIN_S = 1.0
_CALL_WITHIN_S = 5.0
_IDLE_CHECK_S = 30.0
_CANCEL_AGAIN_S = 0.1
_MAX_UNSENT = 10_000
# arq has no blocking read. Therefore each job also pushes a token onto a list that workers block on. One token wakes
# one worker, which then reads the queue. A token is lost if its worker dies, so workers also poll the queue without a
# token.
_POLL_S = 0.1
_MAX_TOKENS = 1_000
# A job only starts work, which takes milliseconds. If a worker dies during a job, another worker gets it after this
# time.
_JOB_WITHIN_S = 30
_JOB_KEPT_S = 24 * 3600
# Lies in the past on any clock. arq compares the sender's clock with the worker's, which may differ.
_ALWAYS_DUE = datetime(2000, 1, 1, tzinfo=UTC)
_SEPARATOR = " "

Job: TypeAlias = Callable[[str], Awaitable[object]]
"""Performs the work of one job id. Exceptions are logged, and the job counts as done."""


@dataclass(frozen=True, slots=True)
class _UnsentJob:
    function: str
    job_id: str


class _Pipeline(Pipeline):
    async def reset(self) -> None:
        """Always release the connection. redis-py would leak it after an error."""
        if self.connection is not None and not self.connection.is_connected:
            # A closed connection watches no keys. redis-py would reconnect to reset it, and the broker may not
            # respond.
            self.watching = False
        try:
            await super().reset()
        finally:
            connection, self.connection = self.connection, None
            if connection is not None:
                pool: Any = self.connection_pool  # redis-py's type also includes the pool of its blocking client
                await connection.disconnect(nowait=True)
                await pool.release(connection)


class _Redis(ArqRedis):
    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        pool: Any = self.connection_pool
        return _Pipeline(pool, self.response_callbacks, transaction, shard_hint)


class RedisBroker:
    """Sends messages to the fleet and receives them, while `running()` is open.

    A single task sends the messages, in call order. While the broker is unavailable, messages are dropped.
    """

    def __init__(self, settings: TaskServerSettings) -> None:
        self.queue = settings.queue
        self._changes = f"{settings.queue}:changes"
        self._tokens = f"{settings.queue}:tokens"
        self._settings = settings
        self._jobs: deque[_UnsentJob] = deque(maxlen=_MAX_UNSENT)
        self._changed: dict[UUID, None] = {}
        self._has_messages = asyncio.Event()
        self.is_reachable: bool | None = None
        """Whether the last call succeeded. None before the first call."""

    def running(self) -> AbstractAsyncContextManager[object]:
        return _background(self._send_all(), "broker-messages")

    def statement_waits(self, statement_id: UUID, *, fence: int) -> None:
        """Wake one worker for a waiting statement.

        The job id contains the statement id and the fence, so repeated calls do not queue a second job.
        """
        self._enqueue("statement", f"stmt:{statement_id}:{fence}")

    def task_waits(self, job_id: str) -> None:
        """Wake one worker for the job id `task:<id>:<fence>`."""
        self._enqueue("task", job_id)

    def statement_changed(self, statement_id: UUID) -> None:
        """Wake the calls that wait for the statement, on all servers."""
        if len(self._changed) < _MAX_UNSENT:
            self._changed[statement_id] = None
            self._has_messages.set()

    def listening(self, changed: Callable[[UUID], None]) -> AbstractAsyncContextManager[object]:
        """Call `changed` for each statement whose change another process reports, while the context is open.

        Reconnects automatically.
        """
        return _background(self._listen(changed), "broker-changes")

    def _enqueue(self, function: str, job_id: str) -> None:
        self._jobs.append(_UnsentJob(function, job_id))
        self._has_messages.set()

    async def _send_all(self) -> None:
        while True:
            try:
                async with self._connected() as redis:
                    if not self.is_reachable:
                        log.info("broker reachable")
                    self.is_reachable = True
                    while True:
                        await self._has_messages.wait()
                        self._has_messages.clear()
                        await self._send(redis)
            except _CONNECTION_ERRORS as error:
                if self.is_reachable is not False:
                    log.warning("broker unreachable; sweeps pick up waiting work", reason=type(error).__name__)
                self.is_reachable = False
                self._jobs.clear()
                self._changed.clear()
            except Exception:  # last resort of a task: later messages must still be sent
                log.exception("message to the broker not sent")
            await asyncio.sleep(_RETRY_S)

    async def _send(self, redis: ArqRedis) -> None:
        while self._jobs:
            job = self._jobs.popleft()
            async with asyncio.timeout(_CALL_WITHIN_S):
                is_new = await redis.enqueue_job(
                    job.function, job.job_id, _job_id=job.job_id, _defer_until=_ALWAYS_DUE, _expires=_JOB_KEPT_S
                )
                if is_new:
                    async with redis.pipeline(transaction=False) as pipeline:
                        pipeline.lpush(self._tokens, 1)
                        pipeline.ltrim(self._tokens, 0, _MAX_TOKENS - 1)
                        await pipeline.execute()
        if self._changed:
            changed, self._changed = self._changed, {}
            async with asyncio.timeout(_CALL_WITHIN_S):
                await redis.publish(self._changes, _SEPARATOR.join(map(str, changed)))

    async def _listen(self, changed: Callable[[UUID], None]) -> None:
        while True:
            with suppress(*_CONNECTION_ERRORS):
                async with self._connected() as redis, redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(self._changes)
                    while True:
                        message = await channel.get_message(timeout=_IDLE_CHECK_S)
                        if message is None:
                            # A silently lost connection looks like an idle one, so the connection is tested.
                            async with asyncio.timeout(_CALL_WITHIN_S):
                                await redis.echo("ping")
                            continue
                        for statement_id in _statement_ids(message["data"]):
                            changed(statement_id)
            await asyncio.sleep(_RETRY_S)

    async def serve(self, jobs: dict[str, Job], *, free_slots: Callable[[], int]) -> None:
        """Take and run jobs forever, at most `free_slots()` at a time. Resumes once the broker is available again."""
        while True:
            with suppress(*_CONNECTION_ERRORS):  # logged by `_send_all`
                async with self._connected() as redis:
                    await self._serve(redis, jobs, free_slots)
            # arq's worker exits as soon as one call gets no response from the broker.
            await asyncio.sleep(_RETRY_S)

    async def _serve(self, redis: ArqRedis, jobs: dict[str, Job], free_slots: Callable[[], int]) -> None:
        worker = _GatedWorker(
            [func(_guarded(name, job), name=name) for name, job in jobs.items()],
            free_slots=free_slots,
            tokens=self._tokens,
            redis_pool=redis,
            queue_name=self.queue,
            poll_delay=0,
            job_timeout=_JOB_WITHIN_S,
            keep_result=0,
            handle_signals=False,
            log_results=False,
            job_serializer=orjson.dumps,
            job_deserializer=orjson.loads,
        )
        try:
            async with _background(worker.main(), "broker-jobs") as polling:
                await asyncio.wait({polling})
                polling.result()
        finally:
            # Jobs take milliseconds, so they are given time to finish. A job canceled at once leaves an arq task with
            # an unread exception.
            jobs_left = list(worker.tasks.values())
            if jobs_left:
                await asyncio.wait(jobs_left, timeout=_CALL_WITHIN_S)
            for task in jobs_left:
                task.cancel()
            await asyncio.gather(*jobs_left, return_exceptions=True)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[ArqRedis]:
        pool = broker_connections(self._settings, connect_within_s=_CONNECT_WITHIN_S, answer_within_s=_CALL_WITHIN_S)
        redis = _Redis(pool, job_serializer=orjson.dumps, job_deserializer=orjson.loads, default_queue_name=self.queue)
        try:
            async with asyncio.timeout(_CALL_WITHIN_S):
                await redis.ping()
            yield redis
        finally:
            with suppress(*_CONNECTION_ERRORS):
                await pool.aclose()


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None], name: str) -> AsyncGenerator["asyncio.Task[None]"]:
    """Run the work in a separate task inside the context. On exit, cancel the task and wait for it to end.

    The task is canceled repeatedly, because redis-py swallows a cancellation that coincides with a reply.
    """
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_AGAIN_S)
        await asyncio.gather(task, return_exceptions=True)


class _GatedWorker(Worker):
    """Takes at most `free_slots()` jobs at a time, and leaves further jobs to other processes."""

    def __init__(self, *arguments: Any, free_slots: Callable[[], int], tokens: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._free_slots = free_slots
        self._tokens = tokens

    async def _poll_iteration(self) -> None:
        if self._free_slots() > self.job_counter:
            await self.pool.execute_command("BRPOP", self._tokens, _POLL_S)
        else:
            await asyncio.sleep(_POLL_S)  # leave the token to a worker with a free slot
        self.allow_pick_jobs = self._free_slots() > self.job_counter
        await super()._poll_iteration()

    async def start_jobs(self, job_ids: list[bytes]) -> None:
        for job_id in job_ids:
            if self._free_slots() <= self.job_counter:
                return
            await super().start_jobs([job_id])


def _guarded(name: str, job: Job) -> "Callable[..., CoroutineType[Any, Any, None]]":
    async def do(ctx: dict[Any, Any], job_id: str) -> None:
        del ctx  # passed by arq
        try:
            await job(job_id)
        except Exception:  # last resort of a task: a sweep makes up for the lost job
            log.exception("job failed", job=name, job_id=job_id)

    return do


def _statement_ids(data: object) -> Sequence[UUID]:
    """Return the statement ids in a message. Empty if the message comes from another program."""
    try:
        return [UUID(one) for one in data.decode().split(_SEPARATOR)] if isinstance(data, bytes) else ()
    except ValueError:
        return ()
