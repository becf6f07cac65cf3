"""The SQL editor (Contract editor): statements, results, sessions, history."""

from queryserver.api.v1.editor import (
    autocomplete,
    describe,
    download,
    ending,
    events,
    explain,
    following,
    formatting,
    history,
    results,
    sample,
    sessions,
    statements,
)

# The calls made most often first: routes are tried in this order. `query/autocomplete` is never read as a dialect.
routes = [
    route
    for part in (
        following,
        results,
        autocomplete,
        statements,
        ending,
        events,
        describe,
        sample,
        explain,
        formatting,
        download,
        sessions,
        history,
    )
    for route in part.router.routes
]
