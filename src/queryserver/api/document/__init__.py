"""The API description: what FastAPI derives from the routes, completed by rule and by the texts beside this file."""
