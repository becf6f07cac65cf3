"""Settings of the embedded mode: what the operator left open is filled with the embedded defaults."""

from pydantic import SecretStr

from queryserver.embedded.places import EmbeddedDefaults
from queryserver.settings import Settings
from queryserver.settings.connectors import InterpreterSettings


def with_defaults(settings: Settings, defaults: EmbeddedDefaults) -> Settings:
    """The settings to serve with. Interpreters of the settings file take the place of the sample ones."""
    desktop = settings.desktop
    database = desktop.database.model_copy(
        update={"url": SecretStr(defaults.service_dsn), "embedded": True, "auto_migrate": True}
    )
    policy = desktop.connector_policy.model_copy(
        update={"local_database_dir": desktop.connector_policy.local_database_dir or defaults.databases_dir}
    )
    local_root = settings.filebrowser.local_root or defaults.files_dir
    interpreters = settings.notebook.interpreters or sample_interpreters(defaults)
    return settings.model_copy(
        update={
            "desktop": desktop.model_copy(update={"database": database, "connector_policy": policy}),
            "filebrowser": settings.filebrowser.model_copy(update={"local_root": local_root}),
            "notebook": settings.notebook.model_copy(update={"interpreters": interpreters}),
        }
    )


def sample_interpreters(defaults: EmbeddedDefaults) -> dict[str, InterpreterSettings]:
    """The three dialects that are there at once, with the sample data."""
    return {
        "duckdb": InterpreterSettings(name="DuckDB", interface="duckdb", options={"path": defaults.duckdb_path}),
        "postgresql": InterpreterSettings(
            name="PostgreSQL", interface="sqlalchemy", options={"url": defaults.sample_dsn}
        ),
        "sqlite": InterpreterSettings(name="SQLite", interface="sqlite", options={"path": defaults.sqlite_path}),
    }
