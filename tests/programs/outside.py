"""What the programs call: a model, tools, a warehouse. It counts the calls, and can leave one without an answer."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.conftest import full_run

#: How long a call may take to come: an import of 10,000 items is slow to begin on a busy machine.
TIMEOUT_S = 600 if full_run() else 60


class Call(NamedTuple):
    """One request."""

    path: str
    body: dict[str, Any]
    #: The idempotency key, if there was one.
    key: str


#: What a service answers: a status and a text.
Service = Callable[[Call], tuple[int, str]]


class Outside:
    """Services by the first part of their path, and everything they were asked."""

    def __init__(self, services: dict[str, Service]) -> None:
        self.services = services
        self.calls: list[Call] = []
        self.most_at_once: Counter[str] = Counter()
        self._at_once: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stuck_on: Callable[[Call], bool] = lambda _: False
        self._stuck_calls = 0
        self._news = threading.Condition(self._lock)
        self._over = threading.Event()

    def get_stuck(self, on: Callable[[Call], bool]) -> None:
        """Leave calls of this kind without an answer, once half of it is sent."""
        with self._lock:
            self._stuck_on, self._stuck_calls = on, 0

    def wait_until_stuck(self, calls: int = 1) -> None:
        """Until so many calls have come that get no answer."""
        with self._news:
            assert self._news.wait_for(lambda: self._stuck_calls >= calls, TIMEOUT_S), len(self.calls)

    def recover(self) -> None:
        """Answer everything again."""
        self._stuck_on = lambda _: False

    def count(self, path: str) -> int:
        """How often a service was called."""
        return sum(call.path == path for call in self.calls)

    def answer(self, call: Call, send: Callable[[int, list[str]], Iterator[None]]) -> None:
        """Take a call: note it, answer it in two pieces, and perhaps stay stuck between them."""
        group = f"{call.path}:{call.body.get('supplier', '')}"
        with self._lock:
            self.calls.append(call)
            self._at_once[group] += 1
            self.most_at_once[group] = max(self.most_at_once[group], self._at_once[group])
        try:
            status, text = self.services[call.path.split("/")[1]](call)
            lines = text.splitlines(keepends=True)
            for _ in send(status, lines):
                if self._stuck_on(call):
                    with self._news:
                        self._stuck_calls += 1
                        self._news.notify_all()
                    self._over.wait()
                    return
        finally:
            with self._lock:
                self._at_once[group] -= 1

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve at an address, in threads."""
        outside = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
                call = Call(self.path, body, self.headers.get("Idempotency-Key", ""))
                outside.answer(call, self.send)

            def do_GET(self) -> None:
                self.do_POST()

            def send(self, status: int, lines: list[str]) -> Iterator[None]:
                self.send_response(status)
                self.send_header("Content-Length", str(sum(len(line.encode()) for line in lines)))
                self.end_headers()
                half = len(lines) // 2
                self.wfile.write("".join(lines[:half]).encode())
                yield
                self.wfile.write("".join(lines[half:]).encode())

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """A caller was killed."""

        with Server(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                self._over.set()
                server.shutdown()
                thread.join()
