"""Search: table `metadata`."""

from typing import Literal

from queryserver.settings.section import NO_SECRET, Count, Flag, Positive, Secret, Section, Text


class CatalogSettings(Section):
    """A catalogue service that search asks."""

    interface: Literal["", "local", "atlas", "navigator", "dummy"] = ""
    """Kind of the catalogue; empty or `local`: none."""
    api_url: Text = ""
    """Its address."""
    server_user: Text = ""
    """Login."""
    server_password: Secret = NO_SECRET
    """Password of the login."""
    search_cluster: Text = "cm"
    """Cluster whose objects are found."""
    timeout_s: Positive = 10
    """Limit of one call."""


class IndexSettings(Section):
    """The index of tables and columns."""

    enabled: Flag = True
    """Whether it is kept."""
    refresh_interval_s: Positive = 3600
    """How often it is renewed."""
    max_tables: Count = 50_000
    """Most tables of one data source."""
    max_columns: Count = 500
    """Most columns of one table."""


class SearchSettings(Section):
    """Live search in file stores."""

    max_entries: Positive = 5000
    """Most entries that are looked at."""
    max_dirs: Positive = 50
    """Most directories that are opened."""
    max_seconds: Positive = 3
    """Time of one search."""


class MetadataSettings(Section):
    """Search."""

    catalog: CatalogSettings = CatalogSettings()
    index: IndexSettings = IndexSettings()
    search: SearchSettings = SearchSettings()
