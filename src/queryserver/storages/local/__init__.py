"""Files below one directory of this machine."""

from queryserver.storages.local.storage import LocalStorage as LocalStorage
