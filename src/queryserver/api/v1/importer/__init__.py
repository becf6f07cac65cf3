"""Files to tables (Contract importer)."""

from queryserver.api.v1.importer import sql_types

routes = [*sql_types.router.routes]
