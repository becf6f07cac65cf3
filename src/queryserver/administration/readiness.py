"""Checks whether this instance can serve calls (Contract platform 9.2), and the broker of the task server (9.2, 11)."""

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queryserver.administration.doctor import Finding
from queryserver.errors.base import ServiceUnavailable
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.platform.settings.tree import Settings, SettingsFinding

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool, Redis
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import field

from queryserver.errors.base import QueryServerError

BROKER = "desktop.task_server.broker_url"
NO_EVICTION = "noeviction"
PING_WITHIN_S = 2.0
_WITHIN_S = 5.0
_MANY_QUEUED = 1000
_NEARLY_FULL = 0.8

_LIMIT_S = 2.0
_STORE_EVERY_S = 10.0
_FAILED_STORE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What a broker reports about itself. Values that the login may not read are empty or zero."""

    ping_ms: float
    product: str
    """Product name and version."""
    eviction: str
    is_saved: bool
    """Whether the broker persists its data to disk."""
    last_save_failed: bool
    used_bytes: int
    max_bytes: int
    """Memory limit in bytes; 0 means no limit."""
    queued: int | None
    """Number of jobs waiting in the configured queue. None if the login may not count them."""


def broker_connections(
    settings: TaskServerSettings, *, connect_within_s: float, answer_within_s: float, **options: bool
) -> "ConnectionPool":
    """Create a pool of broker connections. Connections are opened on demand; `options` are passed to the client.

    With TLS, the certificate must match the host unless the URL disables this check. Raises ServiceUnavailable if the
    URL is invalid, for example because of an unknown option.
    """
    from redis.asyncio import ConnectionPool  # noqa: PLC0415 slow to import, and only the task server needs it

    url = settings.broker_url.get_secret_value()
    if url.lower().startswith("rediss:"):
        options = {"ssl_check_hostname": True, **options}
    try:
        return ConnectionPool.from_url(
            url,
            socket_connect_timeout=connect_within_s,
            # Without a timeout, a hanging broker would block callers forever.
            socket_timeout=answer_within_s,
            **options,
        )
    except ValueError:  # the original message would contain the URL with the password
        raise ServiceUnavailable("The broker URL is invalid.") from None


async def ping_broker(settings: Settings, within_s: float = PING_WITHIN_S) -> None:
    """Ping the broker. Raises ServiceUnavailable unless it responds."""
    async with _connected(settings, within_s) as broker:
        await broker.ping()


async def read_broker(settings: Settings) -> BrokerFacts:
    """Read what the broker reports about itself, without changing anything. Raises ServiceUnavailable."""
    from redis.exceptions import ResponseError  # noqa: PLC0415 slow to import, and only the task server needs it

    async with _connected(settings, _WITHIN_S) as broker:
        await broker.ping()  # opens the connection, which must not count toward the latency
        began = time.monotonic()
        await broker.ping()
        ping_ms = 1000 * (time.monotonic() - began)
        try:
            known: dict[str, Any] = await broker.info()
        except ResponseError:  # the login lacks the permission
            known = {}
        try:
            queued = int(await broker.zcard(settings.desktop.task_server.queue))
        except ResponseError:
            queued = None
    name = str(known.get("server_name", "redis"))
    version = known.get(f"{name}_version", known.get("redis_version", ""))
    return BrokerFacts(
        ping_ms=ping_ms,
        product=f"{name.capitalize()} {version}".strip() if known else "",
        eviction=str(known.get("maxmemory_policy", "")),
        is_saved=bool(known.get("aof_enabled")) or bool(known.get("rdb_last_save_time") and known.get("rdb_saves")),
        last_save_failed="err" in (known.get("rdb_last_bgsave_status"), known.get("aof_last_write_status")),
        used_bytes=int(known.get("used_memory", 0)),
        max_bytes=int(known.get("maxmemory", 0)),
        queued=queued,
    )


@asynccontextmanager
async def _connected(settings: Settings, within_s: float) -> AsyncGenerator["Redis"]:
    from redis.asyncio import Redis  # noqa: PLC0415 slow to import, and only the task server needs it
    from redis.exceptions import RedisError  # noqa: PLC0415 as above

    tasks = settings.desktop.task_server
    pool = broker_connections(tasks, connect_within_s=within_s, answer_within_s=within_s, decode_responses=True)
    try:
        yield Redis(connection_pool=pool)
    except (RedisError, OSError) as error:
        raise ServiceUnavailable("The broker does not respond or rejects the login.") from error
    finally:
        await pool.aclose()


def eviction_problem(facts: BrokerFacts) -> str | None:
    """Explain why the broker may lose queued jobs. Return None if it keeps them."""
    if facts.eviction in ("", NO_EVICTION):
        return None
    return f"has the eviction policy {facts.eviction}, so it may drop queued jobs. Set {NO_EVICTION}."


async def check_broker(settings: Settings) -> Iterable[SettingsFinding]:
    """Report, for `config check`, a broker that does not respond or may lose jobs."""
    try:
        problem = eviction_problem(await read_broker(settings))
    except ServiceUnavailable:
        problem = "does not respond or rejects the login."
    return [SettingsFinding.error(BROKER, problem)] if problem else []


async def examine_broker(settings: Settings) -> Sequence[Finding]:
    """Report the state of the broker for the doctor."""
    area = "broker"
    try:
        facts = await read_broker(settings)
    except ServiceUnavailable as error:
        to_do = f"Start it, or correct {BROKER}. Until then, statements start late, but none is lost."
        return [Finding.error(area, error.message, to_do)]
    queued = "an unknown number of" if facts.queued is None else facts.queued
    saved = "written to disk" if facts.is_saved else "only in memory, which is sufficient"
    product = facts.product or "The broker"
    found = [
        Finding.ok(area, f"{product} responds in {facts.ping_ms:.1f} ms, {queued} jobs are queued; they are {saved}.")
    ]
    if problem := eviction_problem(facts):
        to_do = f"Set maxmemory-policy to {NO_EVICTION} in the broker configuration."
        found.append(Finding.error(area, f"The broker {problem}", to_do))
    if facts.last_save_failed:
        found.append(Finding.warning(area, "The broker's last write to disk failed.", "Check its disk and its log."))
    if facts.max_bytes and facts.used_bytes > _NEARLY_FULL * facts.max_bytes:
        used = f"The broker uses {facts.used_bytes / facts.max_bytes:.0%} of its memory limit."
        found.append(Finding.warning(area, used, "Increase maxmemory. A full broker rejects new jobs."))
    if facts.queued is not None and facts.queued > _MANY_QUEUED:
        what = f"{facts.queued} jobs are waiting."
        found.append(Finding.warning(area, what, "Start more workers, or increase desktop.task_server.concurrency."))
    return found


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    ok: bool
    ms: int


_NOT_NEEDED = ReadinessCheck(ok=True, ms=0)


@dataclass(slots=True, eq=False, kw_only=True)
class Readiness:
    """Checks the service's dependencies concurrently, for up to 2 s each. Never returns addresses or error texts."""

    database: Callable[[], Awaitable[object]]
    schema: Callable[[], Awaitable[object]]
    result_store: Callable[[], Awaitable[object]]
    broker: Callable[[], Awaitable[object]] | None = None
    """The check of the broker. None if the task server is disabled."""
    stopping: bool = field(default=False, init=False)
    """Set on the stop signal. The instance is not ready from then on."""
    _store: ReadinessCheck | None = field(default=None, init=False)
    _store_checked_at: float = field(default=0.0, init=False)
    _store_turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def checks(self) -> dict[str, ReadinessCheck]:
        """Run all checks. The result store is checked at most every 10 s, or every second while it fails."""
        database, schema, store, broker = await asyncio.gather(
            _check(self.database), _check(self.schema), self._check_store(), self._check_broker()
        )
        return {"database": database, "schema": schema, "result_store": store, "broker": broker}

    @property
    def has_broker(self) -> bool:
        return self.broker is not None

    async def _check_broker(self) -> ReadinessCheck:
        return _NOT_NEEDED if self.broker is None else await _check(self.broker)

    async def _check_store(self) -> ReadinessCheck:
        # Only one check runs at a time: any client may request it, and each check of a hanging disk occupies a thread.
        async with self._store_turn:
            every_s = _STORE_EVERY_S if self._store is None or self._store.ok else _FAILED_STORE_EVERY_S
            if self._store is None or time.monotonic() - self._store_checked_at >= every_s:
                self._store = await _check(self.result_store)
                self._store_checked_at = time.monotonic()
            return self._store


async def _check(check: Callable[[], Awaitable[object]]) -> ReadinessCheck:
    started = time.monotonic()
    try:
        async with asyncio.timeout(_LIMIT_S):
            await check()
    except (QueryServerError, TimeoutError):
        ok = False
    else:
        ok = True
    return ReadinessCheck(ok, int((time.monotonic() - started) * 1000))
