"""Files to tables (Contract importer)."""

from queryserver.api.v1.importer import sql_types, uploading

routes = [*uploading.router.routes, *sql_types.router.routes]
