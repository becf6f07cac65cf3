"""Files of any store (Contract storage)."""

from queryserver.api.v1.storage import attributes_changing, creating, deleting, trash

routes = [
    *creating.router.routes,
    *creating.saving.routes,
    *attributes_changing.router.routes,
    *deleting.router.routes,
    *trash.router.routes,
]
