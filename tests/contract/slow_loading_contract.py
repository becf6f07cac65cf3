"""A short version of the loader contract, for engines on which each statement takes seconds.

It reuses the tests of `LoadingContract` that depend on the engine. The code for the remaining rules is shared by all
statement-based loaders, and the other engines' suites test it.
"""

import pytest
from tests.contract.loading_basis import LoadingBasis
from tests.contract.loading_contract import LoadingContract, RowsBroke

from queryserver.engines.protocol import Engine, TableLoader, TableName


class SlowLoadingContract(LoadingBasis):
    """Inherited by one test class per slow engine."""

    test_values_of_all_types_arrive_as_they_are = LoadingContract.test_values_of_all_types_arrive_as_they_are
    test_columns_that_hold_nothing_but_null = LoadingContract.test_columns_that_hold_nothing_but_null
    test_large_texts = LoadingContract.test_large_texts
    test_names_are_data = LoadingContract.test_names_are_data
    test_names_of_tables_are_data = LoadingContract.test_names_of_tables_are_data
    test_names_that_the_engine_cannot_hold_are_refused = (
        LoadingContract.test_names_that_the_engine_cannot_hold_are_refused
    )
    test_loading_zero_batches_creates_an_empty_table = LoadingContract.test_loading_zero_batches_creates_an_empty_table
    test_a_table_that_exists_is_refused_and_left_alone = (
        LoadingContract.test_a_table_that_exists_is_refused_and_left_alone
    )
    test_a_view_counts_as_existing = LoadingContract.test_a_view_counts_as_existing
    test_replacing = LoadingContract.test_replacing
    test_a_view_is_never_replaced = LoadingContract.test_a_view_is_never_replaced
    test_append_goes_by_names = LoadingContract.test_append_goes_by_names
    test_append_to_what_is_not_there_is_refused = LoadingContract.test_append_to_what_is_not_there_is_refused
    test_a_failing_append_leaves_the_old_rows = LoadingContract.test_a_failing_append_leaves_the_old_rows
    test_a_left_over_table_is_dropped = LoadingContract.test_a_left_over_table_is_dropped
    test_of_two_loads_of_one_table_one_wins = LoadingContract.test_of_two_loads_of_one_table_one_wins
    test_another_database = LoadingContract.test_another_database
    test_a_database_that_is_not_there_is_refused = LoadingContract.test_a_database_that_is_not_there_is_refused
    test_a_connector_that_only_reads_refuses = LoadingContract.test_a_connector_that_only_reads_refuses
    test_sql_in_cells_is_never_executed = LoadingContract.test_sql_in_cells_is_never_executed

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_batches_that_raise_leave_nothing(self, engine: Engine, loader: TableLoader, target: TableName):
        """Covers a single error type; the full contract covers all of them."""
        whole = LoadingContract.test_batches_that_raise_leave_nothing
        await whole(self, engine, loader, target, RowsBroke("broke"))  # type: ignore[arg-type]

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.importer(56)
    @pytest.mark.parametrize("state", ["loading", "appending"])
    async def test_a_cancel_leaves_nothing(self, engine: Engine, target: TableName, state: str):
        """Covers only states in which the engine is executing a statement."""
        await LoadingContract.test_a_cancel_leaves_nothing(self, engine, target, state)  # type: ignore[arg-type]
