"""The embedded default: a private PostgreSQL, sample data in three engines, nothing to install or to configure.

`defaults.prepare` is the way in; the rest of the room serves it.
"""
