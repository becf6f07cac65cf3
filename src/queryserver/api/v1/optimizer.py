"""The optimizer calls of Hue, none of which this server carries out (Contract platform 7.8)."""

from fastapi import Response

from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.errors.base import NotSupported

router = PathGroup()


@router.operation("ask_optimizer")
async def optimizer(call: Call, name: str) -> Response:
    """Always refused: there is no optimizer, as `get_config` says."""
    del call
    raise NotSupported(f"The optimizer call {name} is not served.")
