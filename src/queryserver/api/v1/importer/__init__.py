"""Files to tables (Contract importer)."""

from queryserver.api.v1.importer import create_table, header, metadata, preview, sql_types, uploading

routes = [
    *uploading.router.routes,
    *metadata.router.routes,
    *header.router.routes,
    *preview.router.routes,
    *sql_types.router.routes,
    *create_table.router.routes,
]
