"""Real servers for the tests, in temporary folders and on free ports."""


class ServerMissing(Exception):
    """The server cannot be started here: the message says what is not installed."""
