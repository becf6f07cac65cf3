"""Files of any store (Contract storage)."""

from queryserver.api.v1.storage import (
    attributes,
    attributes_changing,
    creating,
    deleting,
    download,
    filesystems,
    listing,
    moving,
    operations,
    part_uploads,
    trash,
    uploading,
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
    *moving.router.routes,
    *operations.router.routes,
    *trash.router.routes,
    *uploading.router.routes,
    *part_uploads.router.routes,
    *part_uploads.completing.routes,
]
