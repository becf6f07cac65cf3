"""All settings of one process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Self

from pydantic import PrivateAttr

from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.editor import (
    BeeswaxSettings,
    EditorSettings,
    ImpalaSettings,
    LimitsSettings,
    MetastoreSettings,
    NotebookSettings,
    RetentionSettings,
    SparkSettings,
)
from queryserver.platform.settings.sections import MetadataSettings, Secret, Section
from queryserver.platform.settings.stores import (
    AwsSettings,
    AzureSettings,
    FilebrowserSettings,
    HadoopSettings,
    ImporterSettings,
)


class Origin(StrEnum):
    """Where the effective value of a key comes from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Sources:
    """What the settings were read from. Keys of `origins` are full names; what is missing there is a default."""

    file: Path | None = None
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))
    admin_password: Secret | None = None
    """`QUERYSERVER_ADMIN_PASSWORD`: the password of the first administrator of the embedded mode."""


class Settings(Section):
    """The whole tree, with the sections and keys of the specification. Read-only; made by `load_settings`."""

    desktop: DesktopSettings = DesktopSettings()
    limits: LimitsSettings = LimitsSettings()
    retention: RetentionSettings = RetentionSettings()
    notebook: NotebookSettings = NotebookSettings()
    editor: EditorSettings = EditorSettings()
    beeswax: BeeswaxSettings = BeeswaxSettings()
    impala: ImpalaSettings = ImpalaSettings()
    spark: SparkSettings = SparkSettings()
    filebrowser: FilebrowserSettings = FilebrowserSettings()
    hadoop: HadoopSettings = HadoopSettings()
    aws: AwsSettings = AwsSettings()
    azure: AzureSettings = AzureSettings()
    importer: ImporterSettings = ImporterSettings()
    metadata: MetadataSettings = MetadataSettings()
    metastore: MetastoreSettings = MetastoreSettings()

    _sources: Sources = PrivateAttr(default_factory=Sources)

    @property
    def sources(self) -> Sources:
        """File and environment behind the values."""
        return self._sources

    @property
    def results_dir(self) -> Path:
        """Directory of local results while no other result store is configured."""
        return self.desktop.data_dir / "results"

    @property
    def uploads_dir(self) -> Path:
        """Directory of files that wait to be imported."""
        return self.importer.upload_dir or self.desktop.data_dir / "uploads"

    def read_from(self, sources: Sources) -> Self:
        """These settings, knowing where they come from."""
        settings = self.model_copy()
        settings._sources = sources  # noqa: SLF001 a copy of this very object
        return settings

    def origin(self, key: str) -> Origin:
        """Where the value of `section.key` comes from."""
        return self._sources.origins.get(key, Origin.DEFAULT)
