"""What a file is called on its way to a browser: its media type, and its name in a header."""

import mimetypes
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import quote

UNKNOWN = "application/octet-stream"

# The same on every machine: nothing of its own tables is read.
_TYPES = mimetypes.MimeTypes(filenames=())
_MORE: Mapping[str, str] = MappingProxyType(
    {
        ".avro": "application/avro",
        ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ".js": "text/javascript",
        ".jsonl": "application/x-ndjson",
        ".md": "text/markdown",
        ".mjs": "text/javascript",
        ".ndjson": "application/x-ndjson",
        ".odp": "application/vnd.oasis.opendocument.presentation",
        ".ods": "application/vnd.oasis.opendocument.spreadsheet",
        ".odt": "application/vnd.oasis.opendocument.text",
        ".orc": "application/vnd.apache.orc",
        ".parquet": "application/vnd.apache.parquet",
        ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        ".webp": "image/webp",
        ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        ".yaml": "application/yaml",
        ".yml": "application/yaml",
    }
)
_PACKED: Mapping[str, str] = MappingProxyType(
    {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
)
_HARMLESS = ("video/", "audio/", "image/")
_HARMLESS_DOCUMENTS = (
    "application/pdf",
    "application/msword",
    "application/vnd.ms-",
    "application/vnd.openxmlformats-officedocument.",
    "application/vnd.oasis.opendocument.",
)
# attr-char of RFC 8187, beside letters, digits and what `quote` keeps.
_PLAIN = "!#$&+-.^_`|~"
_UNQUOTED = frozenset(b'"\\%')


def media_type_of(name: str) -> str:
    """By the extension. A packed file is what it is packed with: it is sent as it is stored."""
    dot = name.rfind(".")
    extension = name[dot:].lower() if dot > 0 else ""
    if extension in _MORE:
        return _MORE[extension]
    if (packed := _TYPES.encodings_map.get(extension)) is not None:
        return _PACKED.get(packed, UNKNOWN)
    return _TYPES.types_map[True].get(extension, UNKNOWN)


def is_harmless(media_type: str) -> bool:
    """Whether a browser may show it in place: nothing in it can act as a page of ours (Contract storage 5.5)."""
    if media_type.startswith("image/svg"):
        return False
    return media_type.startswith(_HARMLESS) or media_type.startswith(_HARMLESS_DOCUMENTS)


def content_disposition(name: str, *, is_inline: bool = False) -> str:
    """The header with both forms of the name. Nothing of the name can end a quote or a line (RFC 6266)."""
    raw = name.encode("utf-8", "replace")
    plain = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in _UNQUOTED else "_" for byte in raw)
    kind = "inline" if is_inline else "attachment"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(raw, safe=_PLAIN)}"
