"""Calls for administrators only (Contract platform 7.5 to 7.7, 7.9)."""

from queryserver.api.v1.admin import app_examples, check_config, logs, statements

routes = [
    *check_config.router.routes,
    *logs.router.routes,
    *app_examples.router.routes,
    *statements.router.routes,
]
