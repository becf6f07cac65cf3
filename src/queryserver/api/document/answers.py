"""Answers of an operation: those of its route, those that every one of its kind can give, headers, examples."""

from collections.abc import Iterator, Mapping
from typing import Any

from queryserver.api.calls import Operation
from queryserver.api.document.schemas import JSON, REF, choices_of
from queryserver.api.document.texts import Texts

# Of a call that may go on, or that may bring the last part, the model says the status.
_OTHER_STATUS = {"RunningOperation": "202", "UploadCompleteResponse": "201"}
_BYTES = "application/octet-stream"
_HEALTH = "/desktop/debug/"
_IMPORTER = "/api/v1/importer/"
_TOKEN = "/api/v1/token/"  # noqa: S105 a path
# Headers that the answers of a status have beside those of all.
_HEADERS = {
    "206": ("Content-Range",),
    "401": ("WWW-Authenticate",),
    "405": ("Allow",),
    "416": ("Content-Range",),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
}
# Of the headers of an operation: a part is never compressed, and without a body only the version is named.
_LEFT_OUT_OF_PARTS = frozenset({"Content-Encoding"})
_KEPT_WITHOUT_BODY = frozenset({"ETag", "Last-Modified"})


class Answers:
    """Completes the answers of operations; `responses` are the failures that many share, by name."""

    def __init__(self, texts: Texts, schemas: Mapping[str, Any]) -> None:
        self._texts = texts
        self._schemas = schemas
        self.responses: dict[str, Any] = {}

    def complete(self, operation: dict[str, Any], row: Operation) -> None:
        """Give `operation` every status that it can answer with, in order."""
        declared: dict[str, Any] = operation["responses"]
        successes = {} if row.fails else self._successes(declared, row)
        bulk = "BulkResponse" in {name for one in successes.values() for name in _models(one)}
        failing: dict[str, Any] = {}
        for status in sorted({*always(row), *map(str, row.failures)}):
            failing[status] = self._shared(status, _style(row.path, status, bulk=bulk))
        for status in map(str, row.failing):
            failing[status] = declared[status]
            self._dress(status, failing[status], ())
        operation["responses"] = dict(sorted({**successes, **failing}.items()))

    def _successes(self, declared: Mapping[str, Any], row: Operation) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for status, answer in declared.items():
            if status >= "400":
                continue
            for split, one in _split(status, answer):
                _name_bytes_first(one)
                self._dress(split, one, tuple(row.headers))
                found[split] = one
        return found

    def _dress(self, status: str, answer: dict[str, Any], headers: tuple[str, ...]) -> None:
        """Headers, a description, and an example of each model."""
        unread = ("X-Unknown-Fields",) if status.startswith("2") or status == "400" else ()
        if status == "206":
            headers = tuple(name for name in headers if name not in _LEFT_OUT_OF_PARTS)
        elif status == "304":
            headers = tuple(name for name in headers if name in _KEPT_WITHOUT_BODY)
        names = ("X-Request-Id", *unread, *_HEADERS.get(status, ()), *headers)
        answer["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
        models = _models(answer)
        if models and answer.get("description", "Successful Response") == "Successful Response":
            answer["description"] = str(self._schemas[models[0]].get("description", "")).partition("\n")[0]
        if models:
            answer["content"][JSON] |= self._examples(models)
        for kind, media in answer.get("content", {}).items():
            sample = self._texts.words["files"].get(kind.partition(";")[0])
            if sample is not None:
                media["example"] = sample

    def _examples(self, models: list[str]) -> dict[str, Any]:
        known = [name for name in models if name in self._texts.samples]
        if len(known) == 1:
            return {"example": self._texts.samples[known[0]]}
        return {"examples": {name: {"value": self._texts.samples[name]} for name in known}} if known else {}

    def _shared(self, status: str, style: tuple[str, ...]) -> dict[str, Any]:
        """A reference to the failure of that status and shape."""
        name = f"{''.join(style)}{status}"
        if name not in self.responses:
            refs = [{"$ref": REF.format(model=model)} for model in style]
            schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
            words = self._texts.words["failures"][int(status)]
            told = {"description": words["description"], "content": {JSON: {"schema": schema}}}
            self._dress(status, told, ())
            told["content"][JSON].pop("examples", None)
            told["content"][JSON]["example"] = _example(words, style)
            self.responses[name] = told
        return {"$ref": f"#/components/responses/{name}"}


def _name_bytes_first(answer: dict[str, Any]) -> None:
    """Describe a file as plain bytes before its real types: generators of clients take the first type they know."""
    content = answer.get("content", {})
    if any(media.get("schema", {}).get("format") == "binary" for media in content.values()):
        answer["content"] = {_BYTES: {"schema": {"type": "string", "format": "binary"}}, **content}


def always(row: Operation) -> Iterator[str]:
    """Statuses that every operation of that kind can answer with, whatever it does."""
    yield "405"
    if row.path.startswith(_HEALTH):
        return
    yield from ("400", "429", "500", "503") if not row.path.startswith(_IMPORTER) else ("400", "429", "500")
    if "{" in row.path:
        yield "404"
    if not row.is_public:
        yield "401"
    if row.rights == "admin":
        yield "403"
    if row.method == "POST" and not row.path.startswith(_IMPORTER):
        yield from ("413", "415")


def _split(status: str, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """One answer for each status that the models of a union stand for."""
    models = _models(answer)
    others = [name for name in models if name in _OTHER_STATUS and len(models) > 1 and _OTHER_STATUS[name] != status]
    usual = [name for name in models if name not in others]
    if not others:
        yield status, answer
        return
    yield status, _answering(usual, answer["description"])
    for name in others:
        yield _OTHER_STATUS[name], _answering([name], answer["description"])


def _answering(models: list[str], description: str) -> dict[str, Any]:
    refs = [{"$ref": REF.format(model=name)} for name in models]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _models(answer: Mapping[str, Any]) -> list[str]:
    return choices_of(answer.get("content", {}).get(JSON, {}).get("schema", {}))


def _style(path: str, status: str, *, bulk: bool) -> tuple[str, ...]:
    """Models of a failure (Contract platform 1.4, 3.2; importer 2.2; storage 7.8).

    Of two, the one comes first that requires a key which the other lacks: clients take the first that fits.
    """
    if status == "401":
        return ("Unauthorized",)
    if path.startswith(_TOKEN) and status == "400":
        return ("ErrorBody", "FieldErrors")
    if path.startswith(_IMPORTER) and status != "404":
        return ("ImporterError",)
    return ("BulkResponse", "ErrorBody") if bulk and status not in {"405", "413", "415", "429"} else ("ErrorBody",)


def _example(words: Mapping[str, Any], style: tuple[str, ...]) -> dict[str, Any]:
    code, message = words["code"], words["message"]
    match style:
        case ("Unauthorized",):
            return {"detail": message}
        case ("ImporterError",):
            return {"error": message, "code": code}
        case (_, "FieldErrors"):
            return {"username": ["This field is required."]}
        case _:
            return {"status": -1, "code": code, "message": message, **words.get("beside", {})}
