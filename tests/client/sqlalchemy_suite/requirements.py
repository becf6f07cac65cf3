"""What each engine behind a server can do, in the words of SQLAlchemy's suite."""

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

POSTGRESQL, DUCKDB, SQLITE = "postgresql", "duckdb", "sqlite"
ALL = (POSTGRESQL, DUCKDB, SQLITE)
SERVERS = (POSTGRESQL, DUCKDB)

CAN = {
    "schemas": SERVERS,  # statements on sqlite cannot attach other files
    "independent_connections": ALL,
    "temp_table_reflection": ALL,
    "temporary_views": ALL,
    "temp_table_names": ALL,
    "index_reflection": ALL,
    "unique_constraint_reflection": (POSTGRESQL, SQLITE),
    "check_constraint_reflection": (POSTGRESQL, SQLITE),
    "named_constraints": (POSTGRESQL, SQLITE),  # DuckDB forgets the names
    "foreign_key_constraint_name_reflection": (POSTGRESQL,),
    "implicitly_named_constraints": (POSTGRESQL,),
    "foreign_key_constraint_option_reflection_ondelete": (POSTGRESQL, SQLITE),
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
    "implements_get_lastrowid": (SQLITE,),
    "insert_returning": ALL,
    "update_returning": ALL,
    "delete_returning": ALL,
    "insert_executemany_returning": ALL,
    "ctes": ALL,
    "ctes_on_dml": (POSTGRESQL,),
    "ctes_with_update_delete": ALL,
    "array_type": SERVERS,
    "json_type": ALL,
    "uuid_data_type": SERVERS,
    "datetime_interval": SERVERS,
    "datetime_timezone": SERVERS,
    "datetime_literals": ALL,
    "date_historic": ALL,
    "precision_numerics_enotation_large": SERVERS,
    "precision_numerics_many_significant_digits": SERVERS,
    "savepoints": (POSTGRESQL, SQLITE),
    "create_table_as": ALL,
    "create_temp_table_as": ALL,
    "table_ddl_if_exists": ALL,
    "index_ddl_if_exists": ALL,
    "unique_constraints_reflect_as_index": (POSTGRESQL,),
    "table_value_constructor": SERVERS,
    "deferrable_fks": (POSTGRESQL,),
    "repeated_column_foreign_keys": (POSTGRESQL, SQLITE),
    "repeated_remote_col_foreign_keys": (SQLITE,),
    "boolean_col_expressions": ALL,
    "nullsordering": ALL,
    "intersect": ALL,
    "except_": ALL,
    "window_functions": ALL,
    "window_range": ALL,
    "window_range_numeric": ALL,
    "window_range_non_numeric": SERVERS,
    "ctes_with_values": ALL,
    "tuple_in": ALL,
    "emulated_lastrowid": (SQLITE,),
    "dbapi_lastrowid": (SQLITE,),
    "cross_schema_fk_reflection": (POSTGRESQL,),
    "implicit_default_schema": SERVERS,
    "default_schema_name_switch": SERVERS,
    "reflect_tables_no_columns": (POSTGRESQL,),
    "temp_table_comment_reflection": SERVERS,
    "comment_reflection_full_unicode": SERVERS,
    "constraint_comment_reflection": (POSTGRESQL,),
    "schema_create_delete": SERVERS,
    "fk_constraint_option_reflection_ondelete_noaction": (POSTGRESQL, SQLITE),
    "foreign_key_constraint_option_reflection_onupdate": (POSTGRESQL, SQLITE),
    "fk_constraint_option_reflection_onupdate_restrict": (POSTGRESQL, SQLITE),
    "has_temp_table": ALL,
    "create_or_replace_view": SERVERS,
    "index_reflects_included_columns": (POSTGRESQL,),
    "indexes_check_column_order": ALL,
    "indexes_with_expressions": ALL,
    "reflect_indexes_with_expressions": SERVERS,
    "inline_check_constraint_reflection": (POSTGRESQL, SQLITE),
    "unicode_ddl": ALL,
    "time_timezone": (),  # parameters of the server have no time with a zone
    "timestamp_microseconds": ALL,
    "datetime_historic": ALL,
    "datetime_timezone_historic": SERVERS,
    "skip_autocommit_rollback": ALL,
    "precision_numerics_enotation_small": ALL,
    "server_defaults": ALL,
    "expression_server_defaults": ALL,
    "aggregate_order_by": ALL,
    "precision_numerics_retains_significant_digits": SERVERS,
    "infinity_floats": SERVERS,  # the server refuses them for sqlite
    "parens_in_union_contained_select_w_limit_offset": SERVERS,
    "parens_in_union_contained_select_wo_limit_offset": SERVERS,
    "float_or_double_precision_behaves_generically": ALL,
    "update_from": ALL,
    "delete_from": SERVERS,
    "mod_operator_as_percent_sign": ALL,
    "percent_schema_names": ALL,
    "order_by_label_with_expression": (DUCKDB, SQLITE),
    "computed_columns": ALL,
    "computed_columns_stored": (POSTGRESQL, SQLITE),
    "computed_columns_virtual": ALL,
    "computed_columns_default_persisted": (),
    "computed_columns_reflect_persisted": ALL,
    "supports_distinct_on": SERVERS,
    "identity_columns": (POSTGRESQL,),
    "identity_columns_standard": (POSTGRESQL,),
    "regexp_match": SERVERS,
    "regexp_replace": SERVERS,
    "fetch_first": SERVERS,
    "fetch_ties": (POSTGRESQL,),
    "fetch_no_order_by": SERVERS,
    "fetch_offset_with_options": (POSTGRESQL,),
    "fetch_expression": SERVERS,
    "materialized_views": (POSTGRESQL,),
    "supports_bitwise_or": ALL,
    "supports_bitwise_and": ALL,
    "supports_bitwise_not": ALL,
    "supports_bitwise_xor": SERVERS,
    "supports_bitwise_shift": ALL,
}


class Requirements(SuiteRequirements):
    """Those of the table, and what the suite wants to know in numbers and names."""

    def get_isolation_levels(self, config):
        levels = {
            POSTGRESQL: ("READ COMMITTED", ["READ COMMITTED", "READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
        }
        default, supported = levels.get(config.db.name, ("SERIALIZABLE", ["SERIALIZABLE"]))
        return {"default": default, "supported": ["AUTOCOMMIT", *supported]}


def _only(engines):
    return property(lambda _self: exclusions.only_on([*engines]) if engines else exclusions.closed())


for _name, _engines in CAN.items():
    if not hasattr(SuiteRequirements, _name):
        raise AttributeError(_name)
    setattr(Requirements, _name, _only(_engines))
