"""A computation executor that runs in this process, for tests of the code that starts computations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from queryserver.computation_worker import load_computation
from queryserver.errors.base import QueryServerError
from queryserver.platform.computation import Task


@dataclass
class InlineComputations:
    """A ComputationExecutor that computes in this process. As in production, options and results are encoded as JSON.

    If `fails` is set, every computation raises it. `done` records the user and task of each computation, `warmed_up`
    the arguments of `warm_up`.
    """

    fails: QueryServerError | None = None
    done: list[tuple[int, Task]] = field(default_factory=list)
    warmed_up: list[tuple[int, Task, Mapping[str, Any], bytes]] = field(default_factory=list)

    def warm_up(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> None:
        self.warmed_up.append((user_id, task, options, content))

    async def run(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> Any:
        self.done.append((user_id, task))
        if self.fails is not None:
            raise self.fails
        known = orjson.loads(orjson.dumps(dict(options)))
        return orjson.loads(orjson.dumps(load_computation(task)(known, content)))
