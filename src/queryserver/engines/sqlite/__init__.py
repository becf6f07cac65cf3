"""SQLite in this process: one file, or a private database per session.

Through `apsw`, since Python's own module hides the declared types of a result's columns, which name its types on the
wire (Contract editor 6.3); in the engine's bounded threads, since one thread per connection would not be bounded.
"""
