"""Files of any store (Contract storage)."""

from queryserver.api.v1.storage import attributes, attributes_changing, creating, deleting, filesystems, listing, trash

routes = [
    *filesystems.router.routes,
    *listing.router.routes,
    *attributes.router.routes,
    *creating.router.routes,
    *creating.saving.routes,
    *attributes_changing.router.routes,
    *deleting.router.routes,
    *trash.router.routes,
]
