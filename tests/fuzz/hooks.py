"""What schemathesis is told of this service; it loads this file by SCHEMATHESIS_HOOKS."""

import json
import os
import random
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis import AuthContext, Case, CheckContext, HookContext, Response

TOKEN = "QUERYSERVER_FUZZ_TOKEN"
"""Environment variable with the administrator's access token."""
KNOWN = "QUERYSERVER_FUZZ_KNOWN"
"""Environment variable with values that exist, by the name of the field that takes them, as JSON."""
ANSWERED = "QUERYSERVER_FUZZ_ANSWERED"
"""Environment variable with the file that gets a line for each answer: operation and status."""

_choices = random.Random(7)
# What the contract answers with 5xx though nothing is wrong: what this server cannot do, or has no address for.
_FINE = {"catalog_unavailable", "engine_unavailable", "key_server_unavailable"}


# A revoke without a body takes the bearer of the call, and the run would go on without credentials: this one has none.
@schemathesis.auth().skip_for(path="/api/v1/token/revoke")
class Bearer:
    """The administrator's token in every call but one."""

    def get(self, case: Case, context: AuthContext) -> str:
        del case, context
        return os.environ[TOKEN]

    def set(self, case: Case, data: str, context: AuthContext) -> None:
        del context
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Put what exists in place of every other made-up name of valid calls, or nearly all would end with 404."""
    del context, kwargs
    if case.meta is not None and case.meta.generation.mode.is_negative:
        return  # what is put in may fit the document, and the call would not be wrong any more
    known = json.loads(os.environ[KNOWN])
    for place in (case.path_parameters, case.query, case.body):
        if isinstance(place, dict):
            for name in place.keys() & known.keys():
                if _choices.random() < 0.5:
                    place[name] = _choices.choice(known[name])


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Response) -> None:
    """Note the answer: a run of nothing but refusals would find nothing."""
    del context
    with Path(os.environ[ANSWERED]).open("a") as answered:
        answered.write(f"{case.operation.label}\t{response.status_code}\n")


@schemathesis.check
def no_fault(context: CheckContext, response: Response, case: Case) -> None:
    """No 5xx but a declared 501, or a 503 about something outside."""
    del context
    status = response.status_code
    if status < 500:
        return
    declared = {str(one) for one in case.operation.definition.raw["responses"]}
    if status == 501 and "501" in declared:
        return
    if status == 503 and response.json().get("code") in _FINE:
        return
    raise AssertionError(f"{status}: {response.text[:500]}")
