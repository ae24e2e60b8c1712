"""Loaded by every pytest run in this repository: notebooks are tested without blind spots."""

pytest_plugins = ["tests.support.strict_notebooks"]
