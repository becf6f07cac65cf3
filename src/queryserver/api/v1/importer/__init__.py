"""Files to tables (Contract importer)."""

from fastapi.routing import APIRoute

routes: list[APIRoute] = []
