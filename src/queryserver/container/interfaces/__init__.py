"""One builder per interface: what a connector's options mean for an adapter.

A new engine is an adapter in `engines/`, a module here with `build`, and a row in `registry.py`.
"""
