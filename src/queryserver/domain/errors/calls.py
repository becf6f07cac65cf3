"""Calls that are wrong as they stand."""

from queryserver.domain.errors.base import QueryServerError


class InvalidRequest(QueryServerError):
    """The call is wrong as it stands; sending it again changes nothing."""

    code = "invalid_request"


class MissingParameter(InvalidRequest):
    """A required parameter is absent or blank; the message names it."""

    code = "missing_parameter"


class InvalidParameter(InvalidRequest):
    """A parameter has the wrong type, is out of range or an unknown word; the message names it."""

    code = "invalid_parameter"


class UnreadableParameter(InvalidParameter):
    """The text of a parameter is no UTF-8, or holds U+0000. `name` is that of the parameter."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"The parameter {name[:64]} {problem}")
        self.name = name


class TooComplex(InvalidRequest):
    """What was sent needs more time or memory to be read than one call may have."""

    code = "too_complex"


class InvalidJson(InvalidRequest):
    """A JSON body or a JSON field does not parse."""

    code = "invalid_json"


class InvalidBody(InvalidRequest):
    """The JSON body is not an object."""

    code = "invalid_body"


class LateBody(InvalidBody):
    """The body did not arrive in time; the rest of it is not waited for."""

    def __init__(self) -> None:
        super().__init__("The body did not arrive in time.")


class InvalidHost(InvalidRequest):
    """The `Host` header is outside `desktop.allowed_hosts`."""

    code = "invalid_host"


class ConflictingParameters(InvalidRequest):
    """Two parameters contradict each other."""

    code = "conflicting_parameters"


class InvalidFields(InvalidRequest):
    """Fields of a token call are wrong; `fields` is the field map of the answer (Contract platform 3.2)."""

    code = "validation_failed"

    def __init__(self, fields: dict[str, list[str]]) -> None:
        super().__init__("Some fields are not valid.")
        self.fields = fields


class InvalidUsername(InvalidRequest):
    """A user name breaks the rule of Contract platform 3.7."""

    code = "invalid_username"

    def __init__(self) -> None:
        super().__init__("A user name has 1 to 150 letters, digits and @ . + - _, and is not only dots.")


class InvalidPassword(InvalidRequest):
    """A new password is below `desktop.auth.password_min_length`, or above what a login takes."""

    code = "invalid_password"


class InvalidRight(InvalidRequest):
    """No right of that name exists (Contract platform 4.3)."""

    code = "invalid_right"

    def __init__(self, right: str) -> None:
        super().__init__(f"There is no right {right[:100]}.")


class InvalidGroupName(InvalidRequest):
    """A new group needs a name that can be listed."""

    code = "invalid_group_name"

    def __init__(self) -> None:
        super().__init__("A group name has 1 to 150 printable characters without comma, and no blank at its ends.")


class PayloadTooLarge(QueryServerError):
    """The body, or the statement in it, is above its limit."""

    code = "payload_too_large"


class PageRowTooLarge(PayloadTooLarge):
    """The first row of a page is alone above the limit of a page; downloads have it."""

    code = "row_too_large"

    def __init__(self, *, row: int | None, limit_bytes: int) -> None:
        """`row` counts from 0; None: rows of a sample, which has no pages."""
        if row is None:
            super().__init__(f"A row is larger than the limit of {limit_bytes} bytes for one page.")
            return
        super().__init__(
            f"Row {row} is larger than the limit of {limit_bytes} bytes for one page. A download of the result has it;"
            f" start_row={row + 1} gives the rows after it.",
            details={"row": row, "limit_bytes": limit_bytes, "next_start_row": row + 1},
        )


class UnsupportedMediaType(QueryServerError):
    """The body has a content type that this call does not read."""

    code = "unsupported_media_type"


class NotSupported(QueryServerError):
    """This server or engine cannot do what was asked."""

    code = "not_supported"
