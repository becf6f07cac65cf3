"""The SQL editor (Contract editor): statements, results, sessions, history."""

from fastapi import APIRouter

from queryserver.api.v1.editor import download, ending, events, following, history, results, sessions, statements

router = APIRouter(tags=["editor"])
for part in (statements, following, results, ending, events, download, sessions, history):
    router.include_router(part.router)
