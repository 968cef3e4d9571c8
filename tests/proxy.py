"""A wire between a client and a server that a test can cut, hold, and break exactly at a COMMIT.

Bytes are passed on as they come. A COMMIT of Bolt has no fields, so it is always the same six bytes, and a client sends it alone.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Self

COMMIT = b"\x00\x02\xb0\x12\x00\x00"
Fate = Literal["pass", "lost", "done", "late"]
"""What becomes of a COMMIT: it is passed on; or the wire breaks before the server has it, after the server has carried it out, or
on the client's side alone, so that the server gets it a while later.
"""
LATE = 1.0
"""Seconds by which a late COMMIT is late."""
_SECONDS = 30.0


@dataclass(eq=False)
class _Wire:
    """One connection, both sides of it. When it is mute the client hears nothing any more."""

    client: socket.socket
    server: socket.socket
    mute: bool = False
    answered: threading.Event = field(default_factory=threading.Event)

    def cut(self) -> None:
        for side in (self.client, self.server):
            hang_up(side)


class Proxy:
    """Listens on a port of the loopback and passes everything on to another.

    :param target: the server's address, such as ``bolt://127.0.0.1:7687``.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition("//")[2].rpartition(":")
        self._target = (host, int(port))
        self.fate: Callable[[int], Fate] = lambda _: "pass"
        """Says what becomes of a COMMIT, given its number from 1; the client waits meanwhile."""
        self.afterwards: Callable[[], object] = lambda: None
        """Called when a COMMIT has met its fate, before the client learns that its wire is broken."""
        self.commits = 0
        """How many were seen."""
        self.connections = 0
        """How many were made."""
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock, self._wires, self._threads = threading.Lock(), set[_Wire](), list[threading.Thread]()
        self._port = 0
        self.open()

    @property
    def address(self) -> str:
        """Where a client finds the proxy."""
        return f"bolt://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Take connections; after :meth:`shut` at the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=64)
        self._port = int(self._listener.getsockname()[1])
        self._start(self._accept, self._listener)

    def shut(self) -> None:
        """Cut everything and take no connection any more, like a server that is gone."""
        hang_up(self._listener)
        self.cut()

    def cut(self) -> None:
        """Cut all connections; new ones are taken."""
        with self._lock:
            wires, self._wires = self._wires, set()
        for wire in wires:
            wire.cut()

    def hold(self) -> None:
        """Keep back whatever the server says, until :meth:`release`."""
        self._flowing.clear()

    def release(self) -> None:
        """Pass on what was kept back, and all that follows."""
        self._flowing.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        self.release()
        for thread in self._threads:
            thread.join(_SECONDS)

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(self._target, timeout=_SECONDS)
                except OSError:
                    hang_up(client)
                    continue
                server.settimeout(None)
                for side in (client, server):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire = _Wire(client, server)
                with self._lock:
                    self.connections += 1
                    self._wires.add(wire)
                self._start(self._forth, wire)
                self._start(self._back, wire)

    def _forth(self, wire: _Wire) -> None:
        """Pass on what the client says."""
        for piece in received(wire.client):
            if not (self._commit(wire, piece) if piece.endswith(COMMIT) else sent(wire.server, piece)):
                break
        if not wire.mute:
            wire.cut()

    def _commit(self, wire: _Wire, piece: bytes) -> bool:
        """Let its fate befall a COMMIT, and return whether the connection goes on."""
        with self._lock:
            self.commits += 1
            number = self.commits
        fate = self.fate(number)
        if fate == "pass":
            return sent(wire.server, piece)
        wire.mute = True
        if fate == "late":
            hang_up(wire.client)
            time.sleep(LATE)
        wire.answered.clear()
        if fate == "lost":
            hang_up(wire.server)
        elif sent(wire.server, piece):
            wire.answered.wait(_SECONDS)
        self.afterwards()
        wire.cut()
        return False

    def _back(self, wire: _Wire) -> None:
        """Pass on what the server says."""
        for piece in received(wire.server):
            wire.answered.set()
            self._flowing.wait()
            if not (wire.mute or sent(wire.client, piece)):
                break
        wire.answered.set()
        if not wire.mute:
            wire.cut()


def hang_up(side: socket.socket) -> None:
    """Close a socket, and wake whoever waits for it in another thread."""
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()


def received(side: socket.socket) -> Iterator[bytes]:
    """Yield what comes until the other side ends."""
    with contextlib.suppress(OSError):
        while piece := side.recv(1 << 16):
            yield piece


def sent(side: socket.socket, piece: bytes) -> bool:
    """Send all of it, and return whether it went out."""
    try:
        side.sendall(piece)
    except OSError:
        return False
    return True
