"""What the tables of the settings file are made of. A docstring below a key is its line in docs/configuration.md."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StrictBool, StrictInt, StrictStr

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Section(BaseModel):
    """One table of the settings file."""

    # Values of a file keep their types, those of the environment are converted by `environment.py`: strict types
    # tell a mistake where a lenient reading would guess.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(name for part in value.replace("\n", ",").split(",") if (name := part.strip()))
    return tuple(value) if isinstance(value, list) else value


def _place(value: Any) -> Any:
    if isinstance(value, str) and value:
        return Path(value).expanduser()
    if isinstance(value, Path):
        return value
    message = "must be a path."
    raise ValueError(message)


def _optional_place(value: Any) -> Any:
    return None if value is None or value == "" else _place(value)


Flag: TypeAlias = StrictBool
Text: TypeAlias = StrictStr
Whole: TypeAlias = StrictInt
Count: TypeAlias = Annotated[StrictInt, Field(ge=0)]
Positive: TypeAlias = Annotated[StrictInt, Field(ge=1)]
Port: TypeAlias = Annotated[StrictInt, Field(ge=1, le=65535)]
Names: TypeAlias = Annotated[tuple[StrictStr, ...], BeforeValidator(_names)]
"""A comma list or an array."""
Place: TypeAlias = Annotated[Path, BeforeValidator(_place)]
"""A path; relative ones count from the working directory."""
OptionalPlace: TypeAlias = Annotated[Path | None, BeforeValidator(_optional_place)]
"""A path; the empty text is none."""
Secret: TypeAlias = SecretStr
"""Has the twins `<key>_file` and `<key>_script`."""
Secrets: TypeAlias = Annotated[tuple[SecretStr, ...], BeforeValidator(_names)]

NO_SECRET = SecretStr("")
