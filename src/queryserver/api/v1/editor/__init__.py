"""The SQL editor (Contract editor): statements, results, metadata."""

from fastapi import APIRouter

from queryserver.api.v1.editor import metadata, results, statements

router = APIRouter(routes=[*statements.router.routes, *results.router.routes, *metadata.router.routes])
