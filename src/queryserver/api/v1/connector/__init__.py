"""Connectors: the catalogue of types, and stored instances (Contract platform 5)."""

from queryserver.api.v1.connector import examples, instances, testing, types

routes = [
    *types.router.routes,
    *instances.router.routes,
    *instances.admin_router.routes,
    *examples.router.routes,
    *testing.router.routes,
]
