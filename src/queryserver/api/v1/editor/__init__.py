"""The SQL editor (Contract editor): statements, results, sessions, history."""

from queryserver.api.v1.editor import download, ending, events, following, history, results, sessions, statements

# The calls made most often first: routes are tried in this order.
routes = [
    route
    for part in (following, results, statements, ending, events, download, sessions, history)
    for route in part.router.routes
]
