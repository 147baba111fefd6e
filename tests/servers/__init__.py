"""Real servers for tests: plain context managers, one module a kind, without pytest."""


class ServerMissing(Exception):
    """The server cannot be started here. Its message says why, and what to install."""
