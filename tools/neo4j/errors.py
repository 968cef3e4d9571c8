"""What can be wrong with a server."""


class Unavailable(Exception):
    """No server can be had on this machine; the message says in one line why, and what to do about it."""


class ServerFailed(Exception):
    """A server that should be there does not answer; the message shows the end of what it said."""
