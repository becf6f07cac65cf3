"""What each engine behind a server supports, as requirements of SQLAlchemy's suite."""

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

POSTGRESQL, DUCKDB, SQLITE, MARIADB = "postgresql", "duckdb", "sqlite", "mysql"
ALL = (POSTGRESQL, DUCKDB, SQLITE, MARIADB)
SERVERS = (POSTGRESQL, DUCKDB, MARIADB)
NOT_MARIADB = (POSTGRESQL, DUCKDB, SQLITE)
SERVERS_BUT_MARIADB = (POSTGRESQL, DUCKDB)

CAN = {
    "foreign_keys_reflect_as_index": (MARIADB,),
    "datetime_microseconds": NOT_MARIADB,
    "time_microseconds": NOT_MARIADB,
    "sql_expression_limit_offset": NOT_MARIADB,
    "precision_generic_float_type": NOT_MARIADB,  # MariaDB returns FLOAT with six digits
    "unbounded_varchar": NOT_MARIADB,
    "schemas": SERVERS,  # statements on SQLite cannot attach other files
    "independent_connections": ALL,
    "temp_table_reflection": ALL,
    "temporary_views": NOT_MARIADB,
    "temp_table_names": NOT_MARIADB,
    "index_reflection": ALL,
    "unique_constraint_reflection": (POSTGRESQL, SQLITE, MARIADB),
    "check_constraint_reflection": (POSTGRESQL, SQLITE, MARIADB),
    "named_constraints": (POSTGRESQL, SQLITE, MARIADB),  # DuckDB does not store constraint names
    "foreign_key_constraint_name_reflection": (POSTGRESQL, MARIADB),
    "implicitly_named_constraints": (POSTGRESQL, MARIADB),
    "foreign_key_constraint_option_reflection_ondelete": (POSTGRESQL, SQLITE, MARIADB),
    "fk_constraint_option_reflection_ondelete_restrict": (POSTGRESQL, SQLITE),
    "reflects_pk_names": (POSTGRESQL, SQLITE),
    "reflect_table_options": ALL,
    "primary_key_constraint_reflection": ALL,
    "foreign_key_constraint_reflection": ALL,
    "comment_reflection": SERVERS,
    "views": ALL,
    "isolation_level": ALL,
    "autocommit": ALL,
    "sequences": SERVERS,
    "sequences_optional": SERVERS,
    "implements_get_lastrowid": (SQLITE, MARIADB),
    "insert_returning": ALL,
    "update_returning": NOT_MARIADB,
    "delete_returning": ALL,
    "insert_executemany_returning": ALL,
    "ctes": ALL,
    "ctes_on_dml": (POSTGRESQL,),
    "ctes_with_update_delete": NOT_MARIADB,
    "array_type": SERVERS_BUT_MARIADB,
    "json_type": ALL,
    "uuid_data_type": SERVERS,
    "datetime_interval": SERVERS_BUT_MARIADB,
    "datetime_timezone": SERVERS_BUT_MARIADB,
    "datetime_literals": ALL,
    "date_historic": ALL,
    "precision_numerics_enotation_large": SERVERS,
    "precision_numerics_many_significant_digits": SERVERS,
    "savepoints": (POSTGRESQL, SQLITE, MARIADB),
    "create_table_as": ALL,
    "create_temp_table_as": ALL,
    "table_ddl_if_exists": ALL,
    "index_ddl_if_exists": ALL,
    "unique_constraints_reflect_as_index": (POSTGRESQL, MARIADB),
    "table_value_constructor": SERVERS_BUT_MARIADB,
    "deferrable_fks": (POSTGRESQL,),
    "repeated_column_foreign_keys": (POSTGRESQL, SQLITE),
    "repeated_remote_col_foreign_keys": (SQLITE, MARIADB),
    "boolean_col_expressions": ALL,
    "nullsordering": ALL,
    "intersect": ALL,
    "except_": ALL,
    "window_functions": ALL,
    "window_range": ALL,
    "window_range_numeric": ALL,
    "window_range_non_numeric": SERVERS_BUT_MARIADB,
    "ctes_with_values": NOT_MARIADB,
    "tuple_in": ALL,
    "emulated_lastrowid": (SQLITE, MARIADB),
    "dbapi_lastrowid": (SQLITE, MARIADB),
    "cross_schema_fk_reflection": (POSTGRESQL, MARIADB),
    "implicit_default_schema": SERVERS,
    "default_schema_name_switch": SERVERS,
    "reflect_tables_no_columns": (POSTGRESQL,),
    "temp_table_comment_reflection": SERVERS,
    "comment_reflection_full_unicode": SERVERS_BUT_MARIADB,
    "constraint_comment_reflection": (POSTGRESQL,),
    "schema_create_delete": SERVERS,
    "fk_constraint_option_reflection_ondelete_noaction": (POSTGRESQL, SQLITE, MARIADB),
    "foreign_key_constraint_option_reflection_onupdate": (POSTGRESQL, SQLITE, MARIADB),
    "fk_constraint_option_reflection_onupdate_restrict": (POSTGRESQL, SQLITE),
    "has_temp_table": ALL,
    "create_or_replace_view": SERVERS,
    "index_reflects_included_columns": (POSTGRESQL,),
    "indexes_check_column_order": ALL,
    "indexes_with_expressions": NOT_MARIADB,
    "reflect_indexes_with_expressions": SERVERS_BUT_MARIADB,
    "inline_check_constraint_reflection": (POSTGRESQL, SQLITE),
    "unicode_ddl": ALL,
    "time_timezone": (),  # statement parameters have no type for time with time zone
    "timestamp_microseconds": NOT_MARIADB,
    "datetime_historic": ALL,
    "datetime_timezone_historic": SERVERS_BUT_MARIADB,
    "skip_autocommit_rollback": ALL,
    "precision_numerics_enotation_small": ALL,
    "server_defaults": ALL,
    "expression_server_defaults": ALL,
    "aggregate_order_by": ALL,
    "precision_numerics_retains_significant_digits": SERVERS,
    "infinity_floats": SERVERS_BUT_MARIADB,  # the server refuses infinities for SQLite
    "parens_in_union_contained_select_w_limit_offset": SERVERS,
    "parens_in_union_contained_select_wo_limit_offset": SERVERS,
    "float_or_double_precision_behaves_generically": NOT_MARIADB,
    "update_from": ALL,
    "delete_from": SERVERS,
    "mod_operator_as_percent_sign": ALL,
    "percent_schema_names": ALL,
    "order_by_label_with_expression": (DUCKDB, SQLITE, MARIADB),
    "computed_columns": ALL,
    "computed_columns_stored": (POSTGRESQL, SQLITE, MARIADB),
    "computed_columns_virtual": ALL,
    "computed_columns_default_persisted": (),
    "computed_columns_reflect_persisted": ALL,
    "supports_distinct_on": SERVERS_BUT_MARIADB,
    "identity_columns": (POSTGRESQL,),
    "identity_columns_standard": (POSTGRESQL,),
    "regexp_match": SERVERS,
    "regexp_replace": SERVERS,
    "fetch_first": SERVERS,
    "fetch_ties": (POSTGRESQL,),
    "fetch_no_order_by": SERVERS,
    "fetch_offset_with_options": (POSTGRESQL,),
    "fetch_expression": SERVERS_BUT_MARIADB,
    "materialized_views": (POSTGRESQL,),
    "supports_bitwise_or": ALL,
    "supports_bitwise_and": ALL,
    "supports_bitwise_not": NOT_MARIADB,
    "supports_bitwise_xor": SERVERS,
    "supports_bitwise_shift": ALL,
}


# The isolation levels, in the order in which the dialect lists them.
MARIADB_LEVELS = ["SERIALIZABLE", "READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ"]
LEVELS = ["READ COMMITTED", "READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


class Requirements(SuiteRequirements):
    """The requirements in `CAN`, and the isolation levels of each engine."""

    def get_isolation_levels(self, config):
        levels = {POSTGRESQL: ("READ COMMITTED", LEVELS), MARIADB: ("REPEATABLE READ", MARIADB_LEVELS)}
        default, supported = levels.get(config.db.name, ("SERIALIZABLE", ["SERIALIZABLE"]))
        return {"default": default, "supported": ["AUTOCOMMIT", *supported]}


def _only(engines):
    return property(lambda _self: exclusions.only_on([*engines]) if engines else exclusions.closed())


for _name, _engines in CAN.items():
    if not hasattr(SuiteRequirements, _name):
        raise AttributeError(_name)
    setattr(Requirements, _name, _only(_engines))
