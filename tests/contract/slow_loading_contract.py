"""A short version of the loader contract for engines on which each statement takes seconds.

It reuses the tests of `LoadingContract` that depend on the engine. All statement-based loaders share the code for the
remaining rules, which the suites of the other engines test.
"""

import pytest
from tests.contract.loading_basis import LoadingBasis
from tests.contract.loading_contract import LoadingContract, RowsBroke
from tests.contract.result_loading import ResultLoading

from queryserver.engines.protocol import Engine, TableLoader, TableName


class SlowLoadingContract(ResultLoading, LoadingBasis):
    """The short loader tests. Each slow engine has a test class that inherits them."""

    test_values_of_all_types_arrive_unchanged = LoadingContract.test_values_of_all_types_arrive_unchanged
    test_columns_with_only_nulls_are_loaded = LoadingContract.test_columns_with_only_nulls_are_loaded
    test_large_texts_are_loaded = LoadingContract.test_large_texts_are_loaded
    test_unusual_names_are_accepted = LoadingContract.test_unusual_names_are_accepted
    test_unusual_table_names_are_accepted = LoadingContract.test_unusual_table_names_are_accepted
    test_names_unsupported_by_the_engine_are_refused = LoadingContract.test_names_unsupported_by_the_engine_are_refused
    test_loading_zero_batches_creates_an_empty_table = LoadingContract.test_loading_zero_batches_creates_an_empty_table
    test_existing_table_is_refused_and_unchanged = LoadingContract.test_existing_table_is_refused_and_unchanged
    test_view_counts_as_an_existing_table = LoadingContract.test_view_counts_as_an_existing_table
    test_table_is_replaced_as_a_whole = LoadingContract.test_table_is_replaced_as_a_whole
    test_view_is_never_replaced = LoadingContract.test_view_is_never_replaced
    test_append_matches_columns_by_name = LoadingContract.test_append_matches_columns_by_name
    test_append_to_a_missing_table_is_refused = LoadingContract.test_append_to_a_missing_table_is_refused
    test_failed_append_keeps_existing_rows = LoadingContract.test_failed_append_keeps_existing_rows
    test_orphaned_staging_table_is_dropped = LoadingContract.test_orphaned_staging_table_is_dropped
    test_one_of_two_loads_of_a_table_succeeds = LoadingContract.test_one_of_two_loads_of_a_table_succeeds
    test_table_is_loaded_into_another_database = LoadingContract.test_table_is_loaded_into_another_database
    test_missing_database_is_refused = LoadingContract.test_missing_database_is_refused
    test_read_only_connector_refuses_to_load = LoadingContract.test_read_only_connector_refuses_to_load
    test_sql_in_cells_is_never_executed = LoadingContract.test_sql_in_cells_is_never_executed

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_failing_batches_leave_no_tables(self, engine: Engine, loader: TableLoader, target: TableName):
        """Covers a single error type; the full contract covers all of them."""
        whole = LoadingContract.test_failing_batches_leave_no_tables
        await whole(self, engine, loader, target, RowsBroke("broke"))  # type: ignore[arg-type]

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.importer(56)
    @pytest.mark.parametrize("state", ["loading", "appending"])
    async def test_canceled_load_leaves_no_tables(self, engine: Engine, target: TableName, state: str):
        """Covers only states in which the engine is executing a statement."""
        await LoadingContract.test_canceled_load_leaves_no_tables(self, engine, target, state)  # type: ignore[arg-type]
