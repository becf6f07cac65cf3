"""What each engine behind a server can do, in the words of SQLAlchemy's suite."""

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

POSTGRESQL, DUCKDB, SQLITE = "postgresql", "duckdb", "sqlite"


def on(*engines: str) -> exclusions.compound:
    """Only these can; the names are those of dialects."""
    return exclusions.only_on([*engines])


class Requirements(SuiteRequirements):
    """The order is that of the suite."""

    @property
    def schemas(self):
        """Statements on sqlite cannot attach other files."""
        return on(POSTGRESQL, DUCKDB)

    @property
    def independent_connections(self):
        return exclusions.open()

    @property
    def temp_table_reflection(self):
        """The metadata calls have a session of their own, which sees no temporary table of the connection."""
        return on(POSTGRESQL, SQLITE)

    temporary_views = temp_table_reflection

    @property
    def temp_table_names(self):
        return on(SQLITE)

    @property
    def index_reflection(self):
        """The metadata calls name no indexes."""
        return on(POSTGRESQL, SQLITE)

    @property
    def reflects_indexes_w_sorting(self):
        return exclusions.closed()

    reflects_indexes_column_sorting = index_reflection

    @property
    def unique_constraint_reflection(self):
        return on(POSTGRESQL, SQLITE)

    @property
    def check_constraint_reflection(self):
        return on(POSTGRESQL, SQLITE)

    @property
    def foreign_key_constraint_name_reflection(self):
        return on(POSTGRESQL)

    @property
    def implicitly_named_constraints(self):
        return on(POSTGRESQL)

    @property
    def foreign_key_constraint_option_reflection_ondelete(self):
        return on(POSTGRESQL, SQLITE)

    fk_constraint_option_reflection_ondelete_restrict = foreign_key_constraint_option_reflection_ondelete

    @property
    def reflects_pk_names(self):
        return on(POSTGRESQL)

    @property
    def reflect_table_options(self):
        return exclusions.open()

    @property
    def primary_key_constraint_reflection(self):
        return exclusions.open()

    @property
    def foreign_key_constraint_reflection(self):
        return exclusions.open()

    @property
    def comment_reflection(self):
        return on(POSTGRESQL)

    @property
    def views(self):
        return exclusions.open()

    @property
    def isolation_level(self):
        return exclusions.open()

    def get_isolation_levels(self, config):
        levels = {
            POSTGRESQL: ("READ COMMITTED", ["READ COMMITTED", "READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
        }
        default, supported = levels.get(config.db.name, ("SERIALIZABLE", ["SERIALIZABLE"]))
        return {"default": default, "supported": ["AUTOCOMMIT", *supported]}

    @property
    def autocommit(self):
        return exclusions.open()

    @property
    def sequences(self):
        return on(POSTGRESQL, DUCKDB)

    sequences_optional = sequences

    @property
    def implements_get_lastrowid(self):
        """The others give new keys by RETURNING."""
        return on(SQLITE)

    @property
    def insert_returning(self):
        return exclusions.open()

    update_returning = delete_returning = insert_executemany_returning = insert_returning

    @property
    def ctes(self):
        return exclusions.open()

    @property
    def ctes_on_dml(self):
        return on(POSTGRESQL)

    @property
    def ctes_with_update_delete(self):
        return on(POSTGRESQL)

    @property
    def array_type(self):
        return on(POSTGRESQL)

    @property
    def json_type(self):
        return on(POSTGRESQL, SQLITE)

    @property
    def uuid_data_type(self):
        return on(POSTGRESQL, DUCKDB)

    @property
    def datetime_interval(self):
        return on(POSTGRESQL, DUCKDB)

    @property
    def datetime_timezone(self):
        return on(POSTGRESQL, DUCKDB)

    @property
    def datetime_literals(self):
        return exclusions.closed()

    @property
    def date_historic(self):
        return exclusions.open()

    @property
    def precision_numerics_enotation_large(self):
        return on(POSTGRESQL)

    @property
    def precision_numerics_many_significant_digits(self):
        return on(POSTGRESQL)

    @property
    def savepoints(self):
        return on(POSTGRESQL, SQLITE)
