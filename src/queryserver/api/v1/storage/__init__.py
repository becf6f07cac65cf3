"""Files of any store (Contract storage)."""

from queryserver.api.v1.storage import (
    attributes,
    attributes_changing,
    creating,
    deleting,
    download,
    filesystems,
    listing,
    trash,
    viewing,
    views,
)

routes = [
    *filesystems.router.routes,
    *listing.router.routes,
    *views.router.routes,
    *viewing.router.routes,
    *attributes.router.routes,
    *download.router.routes,
    *creating.router.routes,
    *creating.saving.routes,
    *attributes_changing.router.routes,
    *deleting.router.routes,
    *trash.router.routes,
]
