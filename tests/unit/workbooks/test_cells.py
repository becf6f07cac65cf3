"""Number formats that display dates, and the dates that numbers represent (Contract importer 12.2)."""

import pytest

from queryserver.formats.table_files import CellKind
from queryserver.workbooks.cells import Temporal, iso_cell, temporal_cell, temporal_of_format


@pytest.mark.importer(42)
@pytest.mark.parametrize(
    ("code", "temporal"),
    [
        ("yyyy-mm-dd", Temporal.DATE),
        ("d. mmm yyyy;@", Temporal.DATE),
        ("[$-409]mmmm", Temporal.DATE),
        ("dddd", Temporal.DATE),
        ("m/d/yy", Temporal.DATE),
        ('yyyy"h"', Temporal.DATE),
        ("[Red]dd\\/mm\\/yyyy", Temporal.DATE),
        ("[$-411]ge.m.d", Temporal.DATE),
        ("yyyy-mm-dd hh:mm", Temporal.TIMESTAMP),
        ("m/d/yyyy h:mm AM/PM", Temporal.TIMESTAMP),
        ("mmm d, ss", Temporal.TIMESTAMP),
        ("yyyy-mm-ddThh:mm:ss.000", Temporal.TIMESTAMP),
        ("h:mm", Temporal.TIME),
        ("hh:mm:ss", Temporal.TIME),
        ("mm:ss.0", Temporal.TIME),
        ("h AM/PM", Temporal.TIME),
        ("h:mm a/p", Temporal.TIME),
        ("[h]:mm:ss", Temporal.DURATION),
        ("[HH]:MM", Temporal.DURATION),
        ("[mm]:ss", Temporal.DURATION),
        ("[ss].00", Temporal.DURATION),
        ("General", None),
        ("0.00", None),
        ("#,##0", None),
        ("0.00E+00", None),
        ("0%", None),
        ("@", None),
        ('0 "days"', None),
        ('#,##0 "y";[Red]-d', None),
        ("[Blue]0.0", None),
        ("[>=100]0;0.0", None),
        ("_(* #,##0.00_)", None),
        ("\\d0", None),
        ("[$EUR] 0.00", None),
        ("", None),
        ('"unclosed y', None),
    ],
)
def test_format_code_determines_the_temporal_kind(code, temporal):
    assert temporal_of_format(0, code) is temporal


@pytest.mark.parametrize(("number", "temporal"),
    [(0, None), (2, None), (14, Temporal.DATE), (17, Temporal.DATE), (18, Temporal.TIME), (21, Temporal.TIME),
    (22, Temporal.TIMESTAMP), (27, Temporal.MOMENT), (45, Temporal.TIME), (46, Temporal.DURATION), (47, Temporal.TIME),
    (49, None), (58, Temporal.MOMENT), (59, None)])  # fmt: skip
def test_built_in_format_number_determines_the_temporal_kind(number, temporal):
    assert temporal_of_format(number, None) is temporal


def test_workbook_may_redefine_a_built_in_format():
    assert temporal_of_format(14, "0.00") is None


@pytest.mark.importer(42)
@pytest.mark.parametrize(
    ("serial", "temporal", "text", "kind"),
    [
        (45306, Temporal.DATE, "2024-01-15", CellKind.DATE),
        (45306.4375, Temporal.DATE, "2024-01-15 10:30:00", CellKind.TIMESTAMP),
        (45306.4375, Temporal.TIMESTAMP, "2024-01-15 10:30:00", CellKind.TIMESTAMP),
        (45306, Temporal.TIMESTAMP, "2024-01-15 00:00:00", CellKind.TIMESTAMP),
        (45306, Temporal.MOMENT, "2024-01-15", CellKind.DATE),
        (45306.437512763, Temporal.TIMESTAMP, "2024-01-15 10:30:01.103000", CellKind.TIMESTAMP),
        (45306.43751157407, Temporal.TIMESTAMP, "2024-01-15 10:30:01", CellKind.TIMESTAMP),
        (45305.99999999999, Temporal.DATE, "2024-01-15", CellKind.DATE),
        (0.3368055555555556, Temporal.TIME, "08:05:00", CellKind.TIME),
        (0, Temporal.TIME, "00:00:00", CellKind.TIME),
        (0.9999999999, Temporal.TIME, "23:59:59.999000", CellKind.TIME),
        (1.25, Temporal.DURATION, "30:00:00", CellKind.DURATION),
        (100, Temporal.DURATION, "2400:00:00", CellKind.DURATION),
        (-0.5, Temporal.DURATION, "-12:00:00", CellKind.DURATION),
        (1, Temporal.DATE, "1900-01-01", CellKind.DATE),
        (59, Temporal.DATE, "1900-02-28", CellKind.DATE),
        (61, Temporal.DATE, "1900-03-01", CellKind.DATE),
        (2958465, Temporal.DATE, "9999-12-31", CellKind.DATE),
    ],
)
def test_serial_number_is_a_date_since_1900(serial, temporal, text, kind):
    cell = temporal_cell(serial, temporal, is_1904=False)
    assert (cell, cell and cell.kind) == (text, kind)


@pytest.mark.importer(42)
@pytest.mark.parametrize(
    ("serial", "text"), [(0, "1904-01-01"), (43844, "2024-01-15"), (59, "1904-02-29"), (2957003, "9999-12-31")]
)
def test_serial_number_is_a_date_since_1904(serial, text):
    cell = temporal_cell(serial, Temporal.DATE, is_1904=True)
    assert (cell, cell and cell.kind) == (text, CellKind.DATE)


@pytest.mark.parametrize("serial", [-1, -0.001, 2958466, 1e300, float("nan"), float("inf")])
def test_serial_number_outside_the_calendar_is_not_a_date(serial):
    assert temporal_cell(serial, Temporal.DATE, is_1904=False) is None
    assert temporal_cell(serial + 1e9, Temporal.DURATION, is_1904=False) is None


@pytest.mark.parametrize(
    ("text", "shown", "kind"),
    [
        ("2024-01-15", "2024-01-15", CellKind.DATE),
        ("2024-01-15T10:30:00", "2024-01-15 10:30:00", CellKind.TIMESTAMP),
        ("2024-01-15T10:30:00.250Z", "2024-01-15 10:30:00.250000", CellKind.TIMESTAMP),
        ("08:05:00", "08:05:00", CellKind.TIME),
        ("PT30H5M0.5S", "30:05:00.500000", CellKind.DURATION),
        ("P1DT1H", "25:00:00", CellKind.DURATION),
    ],
)
def test_date_may_be_iso_text(text, shown, kind):
    cell = iso_cell(text)
    assert (cell, cell and cell.kind) == (shown, kind)


@pytest.mark.parametrize("text", ["", "P", "PT", "x", "2024-13-01", "25:00", "2024-01-15T", "-", "TT", "PTPT"])
def test_other_text_is_not_a_date(text):
    assert iso_cell(text) is None
