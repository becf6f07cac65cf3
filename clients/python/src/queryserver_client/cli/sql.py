"""`qs sql`: reads the SQL from an argument, a file or stdin, and prints the results or writes them to a file."""

import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.failures import FAILED, INCOMPLETE, WrongUse, say
from queryserver_client.cli.forms import BINARY, Form
from queryserver_client.cli.login import open_connection
from queryserver_client.cli.operations import results_of
from queryserver_client.cli.output import form_of, write
from queryserver_client.cli.parameters import parameters_of
from queryserver_client.cli.running import Settings, StatementFailed, results, summary, truncation
from queryserver_client.named_results import with_results

if TYPE_CHECKING:
    from queryserver_client.encoding import Parameters
    from queryserver_client.sync import Connection, Result


@dataclass(frozen=True)
class NamedValues:
    """The unparsed values of -p (`parameters`) and -r (`results`)."""

    parameters: Sequence[str]
    results: Sequence[str]


def run(
    given: "dict[str, Any]",
    words: Sequence[str],
    file: Path | None,
    named: NamedValues,
    output: Form | None,
    to: Path | None,
    *,
    is_expanded: bool,
) -> int:
    """Run the command and return its exit code."""
    settings = Settings(**given)
    text, values = _text(words, file)
    if text is None:
        if output is not None or to is not None or named.parameters or named.results or settings.is_kept:
            raise WrongUse("-o, --to, --keep, -p and -r require a statement")
        from queryserver_client.cli.prompt import converse  # noqa: PLC0415

        with open_connection() as db:
            return converse(db, settings, is_expanded=is_expanded)
    if not text.strip():
        raise WrongUse("there is no statement to run")
    form, parameters = form_of(output, to), parameters_of(named.parameters, values)
    code, written = 0, 0
    try:
        with open_connection() as db, closing(_results(db, settings, text, parameters, named.results)) as each:
            for result in each:
                if result.has_rows and written and (form in BINARY or to is not None):
                    raise WrongUse("the script has more than one result, but this format can contain only one")
                written += result.has_rows
                code = put(db, result, form, to, is_expanded=is_expanded) or code
                if settings.is_kept and result.has_rows:
                    print(f"kept: {result.operation_id}", file=sys.stderr)
            if to is not None and not written:
                raise WrongUse("the statement has no result set; nothing was written")
    except StatementFailed:
        return FAILED
    return code


def _results(
    db: "Connection", settings: Settings, text: str, parameters: "Parameters | None", named: Sequence[str]
) -> "Generator[Result, None, None]":
    """Yield results like `running.results`, after replacing `{name}` in the SQL with the results given as -r."""
    try:
        text = with_results(text, results_of(db, named))
    except ValueError as error:
        raise WrongUse(str(error)) from error
    return results(db, settings, text, parameters)


def _text(words: Sequence[str], file: Path | None) -> "tuple[str | None, Sequence[str]]":
    """Return the SQL and the positional parameter values. The SQL is None if a prompt should be opened."""
    if file is not None:
        return file.read_text("utf-8-sig"), words
    if words and words[0] != "-":
        return words[0], words[1:]
    if not words and sys.stdin.isatty():
        return None, ()
    return sys.stdin.read(), words[1:]


def put(db: "Connection", result: "Result", form: Form, to: Path | None, *, is_expanded: bool) -> int:
    """Print a result, or write it to a file. Return the exit code."""
    cut = truncation(result)
    if not result.has_rows:
        if sys.stderr.isatty():
            print(summary(result), file=sys.stderr)
        return 0
    if form is Form.TABLE:
        from queryserver_client.cli.tables import print_table  # noqa: PLC0415 rich takes long to import

        print_table(result, is_expanded=is_expanded)
    else:
        write(db, result, form, to)
        if to is not None and sys.stderr.isatty():
            print(f"{to}: {summary(result)}", file=sys.stderr)
    if not cut:
        return 0
    say(f"the result is truncated: {cut}")
    return 0 if form is Form.TABLE else INCOMPLETE
