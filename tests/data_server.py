"""A real HTTP server on loopback that misbehaves on request, for tests of downloads.

Each path has a list of `Answer`s: the first request gets the first, the next the second, and so on; the last
one is given for ever. The `Site` records what it was asked, with the headers.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    """How one request is answered."""

    content: bytes = b""
    status: int = 200
    cut: int | None = None  # the connection ends after so many bytes of the body
    ranges: bool = True
    etag: str | None = None
    says_length: bool = True
    wrong_range: bool = False  # answers a range with another one
    stall: float = 0.0  # seconds of silence before the connection ends
    content_type: str | None = None


@dataclass
class Site:
    """The files of the server and the requests it received."""

    url: str
    answers: dict[str, list[Answer]]
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def next_answer(self, path: str) -> Answer:
        waiting = self.answers.get(path, [Answer(status=404)])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


@contextmanager
def serve(answers: Mapping[str, Answer | list[Answer]]) -> Iterator[Site]:
    """Serve until the context ends."""
    lists = {path: list(a) if isinstance(a, list) else [a] for path, a in answers.items()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append((self.path, dict(self.headers.items())))
            answer = site.next_answer(self.path)
            if answer.status != 200:
                self.send_error(answer.status)
                return
            body, start = answer.content, 0
            wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
            if wanted and answer.ranges and condition in (None, answer.etag):
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
                claimed = start + 1 if answer.wrong_range else start
                self.send_header("Content-Range", f"bytes {claimed}-{len(body) - 1}/{len(body)}")
                body = body[start:]
            else:
                self.send_response(200)
            if answer.says_length:
                self.send_header("Content-Length", str(len(body)))
            if answer.content_type:
                self.send_header("Content-Type", answer.content_type)
            if answer.etag:
                self.send_header("ETag", answer.etag)
            self.end_headers()
            self.wfile.write(body if answer.cut is None else body[: max(answer.cut - start, 0)])
            time.sleep(answer.stall)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(f"http://127.0.0.1:{server.server_address[1]}", lists)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
