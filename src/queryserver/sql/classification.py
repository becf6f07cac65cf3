"""Classifies statements by their text: whether they may change data or objects, and whether they are known to read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from queryserver.sql.effects import MYSQL_FUNCTIONS, POSTGRESQL_FUNCTION_PREFIXES, POSTGRESQL_FUNCTIONS
from queryserver.sql.formatter import token_spans
from queryserver.sql.scanner import (
    UNKNOWN,
    LexicalRules,
    dialect_patterns,
    first_keyword,
    has_unclear_quotes,
    is_known_dialect,
)

MAX_TOKENIZED_CHARACTERS = 100_000
"""Longer texts are not tokenized, because that takes a second and more."""
_QUICK_CHARACTERS = 2_000

_READ_KEYWORDS = frozenset(
    {
        "SELECT", "VALUES", "TABLE", "FROM", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "PRAGMA", "SUMMARIZE", "WITH",
        "PIVOT", "UNPIVOT", "",
    }
)  # fmt: skip
_SEARCHED_KEYWORDS = frozenset({"WITH", "EXPLAIN", "PIVOT", "UNPIVOT"})
_MULTIPLE_INSERTS = frozenset({"hive", "sparksql", "databricks"})
"""Dialects in which `FROM t INSERT …` is a statement."""
_MAX_SEARCHED_CHARACTERS = 1_000_000  # this length takes about 10 ms; longer texts would block the event loop
_MAX_SHOWN_CHARACTERS = 40
_CHANGING_WORD = re.compile(rb"\b(?:insert|update|delete|merge|replace)\b")


def is_quick(text: str) -> bool:
    """Return whether the text can be judged on the event loop, which takes at most 10 ms. Use a thread for others."""
    return len(text) <= _QUICK_CHARACTERS


def changes_data(text: str, dialect: str) -> bool:
    """Return whether the statement may change data and must therefore be read to the end even if its result is
    truncated.

    Returns True when in doubt: WITH, EXPLAIN and PIVOT count as changes if the text is long or contains a word such as
    INSERT.
    """
    keyword = first_keyword(text, dialect)
    if keyword not in _READ_KEYWORDS:
        return True
    return _is_searched(keyword, dialect) and (len(text) > _MAX_SEARCHED_CHARACTERS or _mentions(text, _CHANGING_WORD))


def read_only_refusal(
    text: str, dialect: str, *, strict: bool = False, rule: str = "This connector is read-only"
) -> str | None:
    """Return why a statement that must only read is refused, or None if it may run. `rule` begins the sentence.

    If `strict` is set, the engine itself does not refuse changes, so the statement must be known to read.
    """
    keyword = first_keyword(text, dialect)
    limit = MAX_TOKENIZED_CHARACTERS if strict else _MAX_SEARCHED_CHARACTERS
    is_too_long = len(text) > limit and (strict or _is_searched(keyword, dialect))
    if is_too_long or keyword == UNKNOWN:
        return f"{rule}, and the statement is too long to verify that it does not change data."
    if not strict:
        change = _change(text, dialect, keyword) if changes_data(text, dialect) else None
        return None if change is None else f"{rule}, but the statement {change}"
    found = reading_obstacle(text, dialect)
    if found is None:
        return None
    return (
        f"{rule}, and this engine does not refuse changes itself, so only statements that are known to read may run:"
        f" this one {found} To run other statements that read, use a login that has only read rights on the engine."
    )


def _change(text: str, dialect: str, keyword: str) -> str | None:
    """Return what a statement may change, as the end of a sentence, or None if the statement is known to read.

    `replace` is also a function, and quotes and comments may contain any word.
    """
    if keyword not in _READ_KEYWORDS:
        return f"begins with {keyword[:_MAX_SHOWN_CHARACTERS]}."
    obstacle = reading_obstacle(text, dialect)
    is_named = keyword == "WITH" and len(text) <= MAX_TOKENIZED_CHARACTERS
    return obstacle if obstacle is None or is_named else "contains a word of a change, such as INSERT."


def _is_searched(keyword: str, dialect: str) -> bool:
    return keyword in _SEARCHED_KEYWORDS or (keyword == "FROM" and dialect.lower() in _MULTIPLE_INSERTS)


_OBJECT_PRESERVING_KEYWORDS = _READ_KEYWORDS | {
    "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "SET", "RESET", "USE", "BEGIN", "START", "FETCH",
    "HELP", "LIST", "CHECK", "CHECKSUM", "COPY", "DECLARE", "CLOSE", "SAVEPOINT", "RELEASE",
}  # fmt: skip
_OBJECT_CREATING_WORDS = {
    **dict.fromkeys(("SELECT", "WITH", "FROM", "VALUES", "TABLE"), re.compile(rb"\binto\b")),
    "EXPLAIN": re.compile(rb"\b(?:analy[sz]e|reoptimization)\b"),
    "UPDATE": re.compile(rb"\bstatistics\b"),
}


_TRANSACTION_CONTROL = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"})


def controls_transaction(text: str, dialect: str) -> bool:
    """Return whether the statement begins or ends a transaction or savepoint."""
    return first_keyword(text, dialect) in _TRANSACTION_CONTROL


def changes_objects(text: str, dialect: str) -> bool:
    """Return whether the statement may change databases, tables, functions or statistics, which makes metadata stale.

    Returns True when in doubt, because the only consequence is that metadata is read again. The end of a transaction
    counts as a change, because it publishes changes.
    """
    keyword = first_keyword(text, dialect)
    if keyword not in _OBJECT_PRESERVING_KEYWORDS:
        return True
    making = _OBJECT_CREATING_WORDS.get(keyword)
    return making is not None and (len(text) > _MAX_SEARCHED_CHARACTERS or _mentions(text, making))


def _mentions(text: str, words: re.Pattern[bytes]) -> bool:
    """Return whether the text contains one of the words, ignoring case.

    Searches bytes, which is much faster than searching `str`.
    """
    return words.search(text.encode(errors="surrogatepass").lower()) is not None


_QUERY_KEYWORDS = frozenset({"SELECT", "VALUES", "WITH", "TABLE", "FROM"})
_READ_ONLY_KEYWORDS = _QUERY_KEYWORDS | {"SHOW", "DESCRIBE", "DESC", "SUMMARIZE", "EXPLAIN"}

# These words change something inside a statement that begins like a query.
_CHANGING_WORDS = frozenset(
    "INSERT UPDATE DELETE MERGE UPSERT INTO CREATE DROP ALTER GRANT REVOKE LOCK".split()  # noqa: SIM905 readable
)
# These words change something only as the first word of a statement, or after EXPLAIN. Within a query they are names,
# except in dialects of unknown grammar, where a second statement may follow without a semicolon (SQL Server).
_FIRST_WORDS_OF_CHANGES = frozenset(
    """
    TRUNCATE RENAME COMMENT CALL EXEC EXECUTE DO PERFORM PREPARE DEALLOCATE DECLARE BEGIN COMMIT ROLLBACK SAVEPOINT
    UNLOCK ANALYZE ANALYSE REOPTIMIZATION OPTIMIZE VACUUM REINDEX CLUSTER REFRESH MSCK REPAIR CACHE UNCACHE COPY LOAD
    UNLOAD EXPORT IMPORT ATTACH DETACH INSTALL PRAGMA SET RESET USE KILL NOTIFY LISTEN HANDLER PURGE
    """.split()  # noqa: SIM905 fifty lines otherwise
)
_KNOWN_GRAMMARS = frozenset(
    "hive impala sparksql databricks trino presto athena postgresql mysql mariadb sqlite duckdb phoenix".split()  # noqa: SIM905 readable
)
_SEQUENCE_WORDS = frozenset({"NEXTVAL", "SETVAL"})
_FUNCTIONS_WITH_EFFECTS = frozenset(map(str.upper, POSTGRESQL_FUNCTIONS | MYSQL_FUNCTIONS)) | frozenset(
    """
    LASTVAL PG_START_BACKUP PG_STOP_BACKUP PG_EXPORT_SNAPSHOT LOAD_EXTENSION WRITEFILE EDIT EVAL FTS3_TOKENIZER
    REFLECT REFLECT2 TRY_REFLECT JAVA_METHOD IDENTIFIER HTTP_REQUEST REMOTE_QUERY DBOUTPUT
    GET_SPLITS GET_LLAP_SPLITS EXECUTE_SPLITS
    QUERY RAW_QUERY QUERY_TABLE POSTGRES_EXECUTE POSTGRES_QUERY POSTGRES_ATTACH MYSQL_EXECUTE MYSQL_QUERY SQLITE_ATTACH
    SQLITE_QUERY JSON_EXECUTE_SERIALIZED_SQL CHECKPOINT FORCE_CHECKPOINT WRITE_LOG TRUNCATE_DUCKDB_LOGS IMPORT_DATABASE
    OPENQUERY OPENROWSET OPENDATASOURCE
    """.split()  # noqa: SIM905 forty lines otherwise
)
_FUNCTION_PREFIXES_WITH_EFFECTS = tuple(map(str.upper, POSTGRESQL_FUNCTION_PREFIXES))
_PACKAGES_WITH_EFFECTS = ("DBMS_", "UTL_", "SYSTEM$")  # Oracle, Snowflake
_RUNS_PROGRAMS = frozenset({"hive", "sparksql", "databricks"})
"""Dialects with `TRANSFORM (…) USING 'program'`, and in which the server replaces `${name}` before it parses the text,
even within quotes.
"""
_TABLE_FUNCTION_DIALECTS = frozenset({"trino", "presto", "athena"})
HARMLESS_TABLE_FUNCTIONS = frozenset({"SEQUENCE", "EXCLUDE_COLUMNS", "TABLE_CHANGES"})
"""Table functions of Trino that read at most tables of Trino. Others may pass text to another system."""

_QUOTES = "'\"`"
_NAME_QUOTES = ('"', "`", "[")
_ESCAPED_QUOTE = re.compile(r"\\['\"`]")
_UNKNOWN_QUOTES = re.compile(r"[\\`\[#$]")
_LONE_RETURN = re.compile(r"\r(?!\n)")
_CLOSED_COMMENT = re.compile(r"/\*(?!/).*\*/", re.DOTALL)
_QUOTED_CALL = re.compile(r"[\"`\]]\s*(?:\(|/\*|--|#)")
_BEFORE_COLUMN_LISTS = frozenset({"AS", "WITH", "RECURSIVE"})
_BEFORE_SUBQUERIES = frozenset({"AS", "MATERIALIZED", "FROM", "JOIN", "EXISTS"})
_ADVICE = "If it is a name, quote it or put its table's name and a dot before it."


def only_reads(text: str, dialect: str) -> bool:
    """Return whether the statement is a single query without words that may change something.

    Returns False when in doubt. Functions with known effects count as such words; the effects of user-defined functions
    are unknown.
    """
    return reading_obstacle(text, dialect) is None


def reading_obstacle(text: str, dialect: str) -> str | None:
    """Return why the statement is not known to only read, as the end of a sentence; None if it surely only reads.

    Engines and this service may disagree about where a quote or comment ends, because of an engine's mode or version.
    If the text contains anything of that kind, words within quotes and comments count, too.
    """
    name = dialect.lower()
    if len(text) > MAX_TOKENIZED_CHARACTERS:
        return f"is longer than {MAX_TOKENIZED_CHARACTERS} characters."
    if name == "hplsql":
        return "is a program, which may do anything."
    if has_unclear_quotes(text, name) or _LONE_RETURN.search(text) or "\0" in text:
        return "contains quotes or line ends that engines interpret differently."
    if "/*!" in text or "/*M!" in text:
        return "contains a comment that MySQL and MariaDB execute."
    if name in _RUNS_PROGRAMS and "${" in text:
        return "contains `${`, which the engine replaces with the value of a variable."
    tokens, unclear_from = _tokens(text, name)
    words = [token.word for token in tokens if token.word or token.is_quote]
    keyword = first_keyword(text, name)
    if keyword not in _READ_ONLY_KEYWORDS or not words or words[0] != keyword:
        return f"begins with {keyword}." if keyword else "does not begin with a word that begins a query."
    if unclear_from is not None:
        first = next(token.start for token in tokens if token.word)
        in_query = keyword in _QUERY_KEYWORDS and name in _KNOWN_GRAMMARS and first < unclear_from
        if match := _word_of_change(name, in_query=in_query).search(text):
            return f"has quotes or comments whose end is unclear, and contains {_one_line(match[0])}."
    return _ChangeSearch(tokens, name, is_query=keyword in _QUERY_KEYWORDS).obstacle()


@dataclass(frozen=True, slots=True)
class _Token:
    """A token outside comments. `word` is in upper case, and empty for quotes and signs."""

    text: str
    start: int
    stop: int
    word: str
    is_quote: bool

    @property
    def is_quoted_name(self) -> bool:
        return self.is_quote and self.text.startswith(_NAME_QUOTES)


_NO_TOKEN = _Token("", -1, -1, "", is_quote=False)


def _tokens(text: str, dialect: str) -> tuple[list[_Token], int | None]:
    """Return the tokens outside comments, and the offset from which an engine might read other tokens, if any."""
    rules = dialect_patterns(dialect).rules
    unclear = -1 if not is_known_dialect(dialect) and _UNKNOWN_QUOTES.search(text) else None
    if rules.slash_comments and "://" in text:
        unclear = -1
    found = list[_Token]()
    for start, stop in token_spans(text, dialect):
        written = text[start:stop]
        if _is_comment(written, rules):
            is_unclear = _is_unclear_comment(written)
        else:
            token = _token(written, start, stop)
            is_unclear = _has_unclear_end(token, text, e_strings=rules.e_strings)
            found.append(token)
        if is_unclear and unclear is None:
            unclear = start
    return found, unclear


def _is_comment(written: str, rules: LexicalRules) -> bool:
    return (
        written.startswith(("--", "/*"))
        or (rules.hash_comments and written[0] == "#")
        or (rules.slash_comments and written.startswith("//"))
    )


def _is_unclear_comment(written: str) -> bool:
    """Return whether the comment may end earlier or later.

    Some engines nest comments, Hive depending on its version, and Spark continues a line comment after a backslash at
    the end of its line.
    """
    if not written.startswith("/*"):
        return written.endswith("\\")
    return not _CLOSED_COMMENT.fullmatch(written) or "/*" in written[2:]


def _token(written: str, start: int, stop: int) -> _Token:
    has_quotes = "'" in written or '"' in written or "`" in written
    is_quote = has_quotes or (written[0] in "$[" and len(written) > 1)
    is_word = not is_quote and (written[0].isalnum() or written[0] == "_")
    # U+0131 and U+017F are I and S in upper case, and U+212A is k when folded. Engines use both conversions.
    word = written.upper() if written.isascii() else written.casefold().upper()
    return _Token(written, start, stop, word if is_word else "", is_quote)


def _has_unclear_end(token: _Token, text: str, *, e_strings: bool) -> bool:
    """Return whether the quote ends differently in other modes or versions of an engine, or is not closed.

    Backslashes before quotes depend on MySQL's `sql_mode` and PostgreSQL's `standard_conforming_strings`. Tags of
    dollar quotes with unusual characters are separate tokens here.
    """
    written = token.text
    if written == "$":
        return not text[token.stop : token.stop + 1].isdigit()
    if not token.is_quote or written[0] in "$[":
        return False
    if written[0] not in _QUOTES and written[1] in _QUOTES and written[0] in "eE" and e_strings:
        return False
    is_closed = written[-1] in _QUOTES and len(written) > 1
    return not is_closed or _ESCAPED_QUOTE.search(written) is not None


@cache
def _word_of_change(dialect: str, *, in_query: bool) -> re.Pattern[str]:
    """Return a pattern that finds words and signs of changes anywhere in a text.

    If `in_query` is set, words that change something only at the start of a statement do not count.
    """
    words = _CHANGING_WORDS | _SEQUENCE_WORDS | _FUNCTIONS_WITH_EFFECTS
    words = words if in_query else words | _FIRST_WORDS_OF_CHANGES
    prefixes = "|".join(map(re.escape, _FUNCTION_PREFIXES_WITH_EFFECTS + _PACKAGES_WITH_EFFECTS))
    programs = r"|\busing\b(?!\s*\()" if dialect in _RUNS_PROGRAMS else ""
    calls = r"|\btable\s*\(" if dialect in _TABLE_FUNCTION_DIALECTS else ""
    return re.compile(
        rf"(?i);|(?<![a-z_])(?:{'|'.join(sorted(words))})(?![a-z0-9_$])|(?<![a-z0-9_])(?:{prefixes})"
        rf"|\bnext\s+value\b|\bvalues\s+for\b|{_QUOTED_CALL.pattern}{programs}{calls}"
    )


class _ChangeSearch:
    """The search for a token that may change something, in a statement that begins like a query."""

    def __init__(self, tokens: Sequence[_Token], dialect: str, *, is_query: bool) -> None:
        self._tokens = tokens
        self._dialect = dialect
        self._has_known_grammar = dialect in _KNOWN_GRAMMARS
        self._in_query = is_query
        """Whether a word at the current position can no longer be the first word of a statement."""
        self._chains = dict[int, bool]()
        """Whether the names and dots before a token are a chain of names, by the token's index."""

    def obstacle(self) -> str | None:
        return next(filter(None, map(self._obstacle_at, range(len(self._tokens)))), None)

    def _obstacle_at(self, index: int) -> str | None:
        token, following = self._tokens[index], self._at(index + 1)
        if token.text == ";":
            return "contains a semicolon within it."
        if token.is_quoted_name and following.text.startswith("("):
            is_list = self._has_known_grammar and self._at(index - 1).word in _BEFORE_COLUMN_LISTS
            return None if is_list else "calls a function by a quoted name, which may have effects."
        if not token.word:
            return None
        self._in_query = self._in_query or token.word in _QUERY_KEYWORDS
        return self._obstacle_of_call(index) or self._obstacle_of_word(index)

    def _obstacle_of_call(self, index: int) -> str | None:
        word, following = self._tokens[index].word, self._at(index + 1)
        has_effects = word in _FUNCTIONS_WITH_EFFECTS or word.startswith(_FUNCTION_PREFIXES_WITH_EFFECTS)
        has_effects = has_effects and following.text.startswith("(")
        if has_effects or word in _SEQUENCE_WORDS or (word, following.word) == ("NEXT", "VALUE"):
            return f"calls {word}, which may have effects."
        if (word, following.word) == ("VALUES", "FOR"):  # Phoenix: NEXT 100 VALUES FOR s
            return "takes values from a sequence."
        if not self._has_known_grammar and word.startswith(_PACKAGES_WITH_EFFECTS):
            return f"calls {word}, which may have effects."
        if word == "TABLE" and self._dialect in _TABLE_FUNCTION_DIALECTS and following.text == "(":
            return self._obstacle_of_table_function(index + 2)
        return None

    def _obstacle_of_table_function(self, index: int) -> str | None:
        """Return the obstacle if `TABLE(` is followed by a call that may send its text to another system."""
        name = ""
        while (token := self._at(index)).word or token.text == ".":
            name = token.word
            index += 1
        is_call = self._at(index).text == "("
        if not is_call or name in HARMLESS_TABLE_FUNCTIONS:
            return None
        return f"calls the table function {name}, which may have effects."

    def _obstacle_of_word(self, index: int) -> str | None:
        token, following = self._tokens[index], self._at(index + 1)
        word = token.word
        if word[0].isdigit():
            # Some engines end a number before the first letter: `SELECT 1INTO t`.
            return f"contains {word}." if any(change in word for change in _CHANGING_WORDS) else None
        if self._is_member(index):
            return None
        if word == "USING" and self._dialect in _RUNS_PROGRAMS and following.text != "(":
            return "runs a program (USING)."
        if (word, following.word) == ("EXPLAIN", "PLAN"):
            return "stores a plan (EXPLAIN PLAN)."
        if index == 1 and self._at(0).word == "SHOW" and word in {"CREATE", "GRANT"}:
            return None
        is_name = self._in_query and self._has_known_grammar and not self._begins_subquery(index)
        is_first_word = word in _FIRST_WORDS_OF_CHANGES and not is_name
        return f"contains the word {word}. {_ADVICE}" if is_first_word or word in _CHANGING_WORDS else None

    def _begins_subquery(self, index: int) -> bool:
        return self._at(index - 1).text == "(" and self._at(index - 2).word in _BEFORE_SUBQUERIES

    def _is_member(self, index: int) -> bool:
        """Return whether the word follows a name and a dot without blanks, so that it can only be a name, too.

        `1.INTO t` is a number and a keyword, and `@a.` in MySQL is the name of a variable.
        """
        return self._at(index - 1).text == "." and self._may_be_member(index)

    def _may_be_member(self, index: int) -> bool:
        """Return whether all names and dots before the token are a chain of names.

        Each part of a chain is looked at only once, because a chain may be as long as the text.
        """
        parts = list[int]()
        while index not in self._chains and self._at(index - 1).text == ".":
            parts.append(index)
            index -= 2
        is_chain = self._chains.setdefault(index, self._at(index - 1).text not in {"@", "$", ":", "#"})
        for part in reversed(parts):
            is_chain = self._chains[part] = is_chain and self._is_linked(part)
        return is_chain

    def _is_linked(self, index: int) -> bool:
        """Return whether a name, a dot and the token follow each other without blanks."""
        dot, base = self._at(index - 1), self._at(index - 2)
        is_name = base.is_quoted_name or (base.word != "" and not base.word[0].isdigit())
        return is_name and base.stop == dot.start == dot.stop - 1 == self._at(index).start - 1

    def _at(self, index: int) -> _Token:
        return self._tokens[index] if 0 <= index < len(self._tokens) else _NO_TOKEN


def _one_line(text: str) -> str:
    return " ".join(text.split())
