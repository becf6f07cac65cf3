"""A slow reference implementation of the splitting rules in Contract editor 5, which works character by character and
without `re`.
"""

from dataclasses import dataclass

BACKSLASH = {"hive", "impala", "sparksql", "mysql", "phoenix", "snowflake"}
E_STRINGS = {"postgresql", "duckdb"}
DOLLARS = {"postgresql", "duckdb", "snowflake"}
BACK_TICKS = {"hive", "impala", "sparksql", "mysql", "sqlite", "duckdb"}
SLASHES = {"phoenix", "snowflake"}
NESTED = {"postgresql", "duckdb", "sparksql"}


@dataclass
class Token:
    kind: str  # blank, comment, literal, word, char, end (a terminator), command (a DELIMITER line)
    start: int
    stop: int


def is_word_start(char: str) -> bool:
    return (char.isascii() and char.isalpha()) or char == "_" or not char.isascii()


def is_word_char(char: str) -> bool:
    return is_word_start(char) or (char.isascii() and char.isdigit()) or char == "$"


class Reference:
    def __init__(self, script: str, dialect: str):
        self.s, self.d, self.terminator = script, dialect, ";"

    def at(self, text: str, i: int) -> bool:
        return self.s[i : i + len(text)] == text

    def closing(self, text: str, i: int) -> int:
        while i < len(self.s):
            if self.at(text, i):
                return i + len(text)
            i += 1
        return i

    def escaped(self, quote: str, i: int) -> int:
        while i < len(self.s):
            if self.s[i] == "\\":
                i += 2
            elif self.s[i] == quote:
                return i + 1
            else:
                i += 1
        return len(self.s)

    def e_string(self, i: int) -> int:
        while True:
            i = self.escaped("'", i)
            if self.at("'", i):
                i += 1
                continue
            k, line_ended = i, False
            while k < len(self.s):
                if self.s[k].isspace() and (line_ended or self.s[k] in " \t\f\v\r\n"):
                    line_ended = line_ended or self.s[k] in "\r\n"
                    k += 1
                elif self.at("--", k):
                    while k < len(self.s) and self.s[k] not in "\r\n":
                        k += 1
                    line_ended = line_ended and k < len(self.s)
                else:
                    break
            if not (line_ended and self.at("'", k)):
                return i
            i = k + 1

    def line(self, i: int) -> int:
        while i < len(self.s) and self.s[i] not in "\r\n":
            i += 1
        return i

    def comment(self, i: int) -> int | None:
        if self.at("--", i) and (
            self.d != "mysql" or i + 2 >= len(self.s) or self.s[i + 2] <= " " or self.s[i + 2] == "\x7f"
        ):
            return self.line(i)
        if self.d == "mysql" and self.at("#", i):
            return self.line(i)
        if self.d in SLASHES and self.at("//", i) and self.s[i - 1 : i] != ":":
            return self.line(i)
        if not self.at("/*", i) or (self.d == "mysql" and self.at("/*!", i)):
            return None
        depth = 0
        while i < len(self.s):
            if self.at("/*", i) and (depth == 0 or self.d in NESTED):
                depth, i = depth + 1, i + 2
            elif self.at("*/", i):
                depth, i = depth - 1, i + 2
                if depth == 0:
                    return i
            else:
                i += 1
        return i

    def dollar_tag(self, i: int) -> str | None:
        k = i + 1
        while k < len(self.s) and (
            is_word_start(self.s[k]) if k == i + 1 else is_word_char(self.s[k]) and self.s[k] != "$"
        ):
            k += 1
        return self.s[i : k + 1] if self.at("$", k) else None

    def q_quote(self, i: int) -> int | None:
        if i and self.s[i - 1].isdigit() and self.s[i - 1].isascii():
            return None
        k = i + 1 if self.s[i] in "nN" else i
        if self.s[k : k + 1] not in ("q", "Q") or not self.at("'", k + 1):
            return None
        sign = self.s[k + 2 : k + 3]
        if sign in ("", " ", "\t", "\r", "\n"):
            return None
        return self.closing({"[": "]", "{": "}", "(": ")", "<": ">"}.get(sign, sign) + "'", k + 3)

    def literal(self, i: int) -> int | None:
        c, d = self.s[i], self.d
        if c in "'\"":
            return self.escaped(c, i + 1) if d in BACKSLASH else self.closing(c, i + 1)
        if c in "eE" and d in E_STRINGS and self.at("'", i + 1):
            return self.e_string(i + 2)
        if d == "oracle" and (stop := self.q_quote(i)) is not None:
            return stop
        if c == "`" and d in BACK_TICKS:
            return self.closing("`", i + 1)
        if c == "[" and d == "sqlite":
            return self.closing("]", i + 1)
        if c == "$" and d in DOLLARS and (tag := self.dollar_tag(i)):
            return self.closing(tag, i + len(tag))
        return None

    def token(self, i: int, fresh: bool) -> Token:
        """Return the next token. If `fresh` is set, the current statement has no text yet."""
        c = self.s[i]
        if self.at(self.terminator, i):
            return Token("end", i, i + len(self.terminator))
        if c.isspace():
            return Token("blank", i, i + 1)
        if (stop := self.comment(i)) is not None:
            return Token("comment", i, stop)
        if (
            fresh
            and self.d == "mysql"
            and self.s[i : i + 9].upper() == "DELIMITER"
            and self.s[i + 9 : i + 10] in (" ", "\t")
        ):
            words = self.s[i : self.line(i)].split(None, 2)
            if len(words) > 1 and len(words[1]) <= 15:
                self.terminator = words[1]
                return Token("command", i, self.line(i))
        if (stop := self.literal(i)) is not None:
            return Token("literal", i, stop)
        if is_word_start(c) and self.d != "mysql":
            stop = i
            while stop < len(self.s) and is_word_char(self.s[stop]):
                stop += 1
            return Token("word", i, stop)
        return Token("char", i, i + 1)

    def tokens(self) -> list[Token]:
        tokens, i, fresh = [], 0, True
        while i < len(self.s):
            token = self.token(i, fresh)
            tokens.append(token)
            i = token.stop
            if token.kind in ("end", "command"):
                fresh = True
            elif token.kind not in ("blank", "comment"):
                fresh = False
        return tokens

    def word(self, token: Token) -> str:
        return self.s[token.start : token.stop].upper() if token.kind == "word" else ""

    def spans(self) -> list[tuple[int, int, int, int]]:
        """Return four offsets for each statement: the end of the previous terminator, the first offset, the stop
        offset, and the end of its own terminator. An offset is -1 if the terminator does not exist.
        """
        tokens, spans, k, after = self.tokens(), [], 0, -1
        while k < len(tokens):
            content = k
            while content < len(tokens) and tokens[content].kind in ("blank", "comment"):
                content += 1
            if content == len(tokens):
                break
            if tokens[content].kind in ("end", "command"):
                after = tokens[content].stop if tokens[content].kind == "end" else after
                k = content + 1
                continue
            stop = self.statement_stop(tokens, content)
            first = next(j for j in range(k, len(tokens)) if tokens[j].kind != "blank")
            end = tokens[stop].start if stop < len(tokens) else len(self.s)
            begin = tokens[first].start
            ended = tokens[stop].stop if stop < len(tokens) else -1
            spans.append((after, begin, begin + len(self.s[begin:end].rstrip()), ended))
            after, k = ended, stop + 1
        return spans

    def statement_stop(self, tokens: list[Token], content: int) -> int:
        """Return the index of the token that ends the statement, or len(tokens) if none does."""
        plain_stop, depth = content, 0
        while plain_stop < len(tokens) and (tokens[plain_stop].kind != "end" or depth):
            text = self.s[tokens[plain_stop].start : tokens[plain_stop].stop]
            if self.d == "postgresql" and text in ("(", ")"):
                depth = depth + 1 if text == "(" else max(depth - 1, 0)
            plain_stop += 1
        if self.word(tokens[content]) not in ("CREATE", "EXPLAIN"):
            return plain_stop
        real = [j for j in range(content, len(tokens)) if tokens[j].kind not in ("blank", "comment")]
        words = []
        for j in real[:6]:
            if not self.word(tokens[j]):
                break
            words.append(self.word(tokens[j]))
        if self.d == "sqlite":
            head = (
                words[3:]
                if words[:3] == ["EXPLAIN", "QUERY", "PLAN"]
                else words[1:]
                if words[:1] == ["EXPLAIN"]
                else words
            )
            if head[:1] == ["CREATE"] and (
                head[1:2] == ["TRIGGER"] or (head[1:2] in (["TEMP"], ["TEMPORARY"]) and head[2:3] == ["TRIGGER"])
            ):
                return self.trigger_stop(tokens, real)
        if self.d == "postgresql":
            head = words[:1] + words[3:] if words[1:3] == ["OR", "REPLACE"] else words
            if head[:1] == ["CREATE"] and head[1:2] in (["FUNCTION"], ["PROCEDURE"]):
                return self.routine_stop(tokens, real)
        return plain_stop

    def names(self, tokens: list[Token]) -> set[int]:
        """Return the indexes of words that are names because AS or a dot precedes them."""
        found, j = set(), 0
        while j < len(tokens):
            after_as = self.word(tokens[j]) == "AS"
            if after_as or self.s[tokens[j].start : tokens[j].stop] == ".":
                k = j + 1
                while k < len(tokens) and tokens[k].kind == "blank":
                    k += 1
                if k < len(tokens) and tokens[k].kind == "word" and (k > j + 1 or not after_as):
                    found.add(k)
                    j = k
            j += 1
        return found

    def trigger_stop(self, tokens: list[Token], real: list[int]) -> int:
        names, body = self.names(tokens), False
        for n, j in enumerate(real):
            if not body and self.word(tokens[j]) == "BEGIN" and j not in names:
                body = True
            if tokens[j].kind != "end":
                continue
            if not body:
                return j
            if n >= 2 and self.word(tokens[real[n - 1]]) == "END" and tokens[real[n - 2]].kind == "end":
                return j
        return len(tokens)

    def routine_stop(self, tokens: list[Token], real: list[int]) -> int:
        names, depth, n = self.names(tokens), 0, 0
        while n < len(real):
            j = real[n]
            word = "" if j in names else self.word(tokens[j])
            if depth == 0 and word == "BEGIN" and n + 1 < len(real) and self.word(tokens[real[n + 1]]) == "ATOMIC":
                depth, n = 1, n + 1
            elif depth and word == "CASE":
                depth += 1
            elif depth and word == "END":
                depth -= 1
            elif depth == 0 and tokens[j].kind == "end":
                return j
            n += 1
        return len(tokens)

    def place(self, offset: int) -> tuple[int, int]:
        row = column = 0
        for i in range(offset):
            line_end = self.s[i] == "\n" or (self.s[i] == "\r" and not self.at("\n", i + 1))
            row, column = (row + 1, 0) if line_end else (row, column + 1)
        return row, column

    def statements(self) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        spans, result = self.spans(), []
        for n, (after, first, stop, ended) in enumerate(spans):
            row, column = self.place(first)[0], 0
            if after >= 0 and self.place(after)[0] == row:
                column = self.place(after)[1]
            followed = n < len(spans) - 1
            end = self.place(stop - 1 if len(spans) == 1 else ended if followed else stop)
            result.append((self.s[first:stop], (row, column), end))
        return result
