"""Entries of stores as the wire has them (Contract storage 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from queryserver.api.schemas import generated as wire
from queryserver.files import viewing as files
from queryserver.files.model import FileStatus, Scheme, StoragePath
from queryserver.platform.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class EntryShapes:
    """Entries of one store. `managed`: directories of HDFS whose content another service manages."""

    scheme: Scheme
    zone: tzinfo
    url_prefix: str
    managed: Sequence[StoragePath]

    @classmethod
    def of(cls, settings: Settings, scheme: Scheme) -> Self:
        """By the settings; prefixes may have the name of the file system."""
        browser = settings.filebrowser
        prefixes = browser.managed_prefixes if scheme is Scheme.HDFS else ()
        managed = [StoragePath(Scheme.HDFS, urlsplit(prefix).path.strip("/")) for prefix in prefixes]
        return cls(scheme, ZoneInfo(settings.desktop.time_zone), browser.browser_url_prefix, managed)

    def url(self, path: StoragePath) -> str:
        return self.url_prefix + files.url_part(str(path))

    def is_managed(self, path: StoragePath) -> bool:
        return any(map(path.is_inside, self.managed))

    def entry(self, status: FileStatus, *, name: str | None = None) -> wire.FileEntry:
        """A listing entry, as directory views have them."""
        return wire.FileEntry.model_validate(self.entry_fields(status, name=name))

    def flat(self, status: FileStatus) -> wire.FlatFileEntry:
        """A flat entry, as storage/list has them."""
        return wire.FlatFileEntry.model_validate(self.flat_fields(status))

    def entry_fields(self, status: FileStatus, *, name: str | None = None) -> dict[str, object]:
        """The keys of `entry`, not validated: for many entries."""
        path = StoragePath(self.scheme, status.path)
        stats = self._stats(status, name)
        return {
            "path": stats["path"],
            "name": stats["name"],
            "stats": stats,
            "mtime": files.time_text(files.epoch_seconds(status.modified_at), self.zone),
            "humansize": files.human_size(0 if status.is_directory else status.size_bytes),
            "type": status.kind.value,
            "rwx": files.rwx(status.mode, has_acl=status.has_acl),
            "mode": files.mode_text(status.mode),
            "url": self.url(path),
            "is_sentry_managed": self.is_managed(path),
        }

    def flat_fields(self, status: FileStatus) -> dict[str, object]:
        """The keys of `flat`."""
        return {
            **self._stats(status, None),
            "type": status.kind.value,
            "rwx": files.rwx(status.mode, has_acl=status.has_acl),
        }

    def breadcrumbs(self, path: StoragePath) -> list[wire.Breadcrumb]:
        return [wire.Breadcrumb(url=url, label=label) for url, label in files.breadcrumbs(path)]

    def _stats(self, status: FileStatus, name: str | None) -> dict[str, object]:
        return {
            "path": str(StoragePath(self.scheme, status.path)),
            "name": status.name if name is None else name,
            "size": 0 if status.is_directory else status.size_bytes,
            "atime": files.epoch_seconds(status.accessed_at),
            "mtime": files.epoch_seconds(status.modified_at),
            "mode": status.mode,
            "user": status.owner,
            "group": status.group,
            "aclBit": status.has_acl,
            "blockSize": status.block_size,
            "replication": status.replication,
        }
