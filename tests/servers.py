"""A real HTTP server on the loopback that embeds, or misbehaves in the way that a test scripts."""

import json
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

DIMENSION = 6


@dataclass(frozen=True)
class Request:
    """What the server was sent: the address's path and query, headers by lower-case name, and the JSON body."""

    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def inputs(self) -> list[str]:
        inputs: list[str] = self.body["input"]
        return inputs


@dataclass(frozen=True)
class Answer:
    """What to send back. ``length`` is stated in place of the true one; ``silent`` sends nothing until the server stops."""

    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    silent: bool = False
    pause: float = 0.0
    """Seconds between single bytes of the body."""


Script = Callable[[Request], Answer]


def vector_of(text: str, dimension: int = DIMENSION) -> list[float]:
    """Return the unit vector that the server has for a text."""
    seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    vector = np.random.default_rng(seed).standard_normal(dimension)
    return [float(value) for value in vector / np.linalg.norm(vector)]


def listed(rows: Sequence[object], **fields: object) -> bytes:
    """Return the body of an answer with these embeddings, in order."""
    items = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
    return json.dumps({"object": "list", "data": items} | fields).encode()


def embed(request: Request) -> Answer:
    """Answer as a sound server does."""
    return Answer(listed([vector_of(text) for text in request.inputs]))


def fixed(answer: Answer) -> Script:
    """Return a script that always gives one answer."""
    return lambda _: answer


def in_turn(*steps: Script | Answer) -> Script:
    """Return a script that takes the steps one after the other and stays at the last."""
    left = list(steps)

    def script(request: Request) -> Answer:
        step = left.pop(0) if len(left) > 1 else left[0]
        return step if isinstance(step, Answer) else step(request)

    return script


class EmbeddingServer:
    """Listens on a free port of the loopback until closed; ``requests`` holds everything that arrived, in order."""

    def __init__(self, script: Script = embed) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._http = _Server(self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            return self.script(request)

    def close(self) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, owner: EmbeddingServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            self._send(self.server.owner.answer(Request(self.path, headers, json.loads(raw))))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, answer: Answer) -> None:
        if answer.silent:
            self.server.owner.stopping.wait(30)
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
        self.end_headers()
        self._send_body(answer)
        if answer.length is not None:
            self.close_connection = True

    def _send_body(self, answer: Answer) -> None:
        if not answer.pause:
            self.wfile.write(answer.body)
            return
        for byte in answer.body:
            self.wfile.write(bytes([byte]))
            if self.server.owner.stopping.wait(answer.pause):
                return

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def deaf_socket() -> Iterator[str]:
    """Give the address of a socket that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


def free_port() -> int:
    """Return a port of the loopback on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def holds_after_fork(check: Callable[[], bool]) -> bool:
    """Return whether a check holds in a forked child; a child that hangs is ended by an alarm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is tested
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0
