"""Files of any store (Contract storage)."""

from fastapi.routing import APIRoute

routes: list[APIRoute] = []
