"""Files below one directory of this machine."""

from queryserver.storages.local.file_system import LocalFileSystem as LocalFileSystem
from queryserver.storages.local.private import PrivateStorage as PrivateStorage
