"""Files of any store (Contract storage)."""

from fastapi import APIRouter

from queryserver.api.v1.storage import calls, changing, reading, uploads

router = APIRouter(
    routes=[*calls.router.routes, *reading.router.routes, *changing.router.routes, *uploads.router.routes]
)
