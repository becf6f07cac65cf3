"""Ozone through its gateway, which speaks the calls of HttpFS (Contract storage 10.1)."""

from queryserver.storages.ozone.file_system import OzoneFileSystem

__all__ = ["OzoneFileSystem"]
