"""A hub on loopback that serves one model, and misbehaves where a test says so."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf")


@dataclass
class FakeHub:
    """What the hub serves, and what it was asked."""

    files: dict[str, bytes]
    name: str = "somebody/small"
    revisions: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, COMMIT: COMMIT})
    cut_once: dict[str, int] = field(default_factory=dict)
    """Bytes after which the next answer with a file's content is cut off."""
    lies: dict[str, bytes] = field(default_factory=dict)
    """Content that is sent in place of a file's."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Told of a file in place of its own."""
    status: int | None = None
    """Answered to everything."""
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    url: str = ""

    def described(self, revision: str) -> dict[str, object]:
        siblings = []
        for file, content in self.files.items():
            size = self.sizes.get(file, len(content))
            entry: dict[str, object] = {
                "rfilename": file,
                "size": size,
                "blobId": git_sha1(content),
            }
            if file.endswith(LARGE):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": 130}
            siblings.append(entry)
        return {
            "_id": "1",
            "id": self.name,
            "modelId": self.name,
            "sha": self.revisions[revision],
            "siblings": siblings,
            "tags": [],
        }

    def contents(self) -> list[str]:
        """Files whose content was asked for."""
        return [line.rsplit("/", 1)[1] for line in self.asked if line.startswith("GET /somebody")]


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            if bearer := self.headers.get("Authorization"):
                hub.tokens.add(bearer.removeprefix("Bearer "))
            parts = path.strip("/").split("/")
            if hub.status is not None:
                self._send(hub.status, b"{}", {}, body=body)
            elif parts[:2] == ["api", "models"] and "/".join(parts[2:4]) == hub.name:
                revision = "/".join(parts[5:]) or "main"
                if revision not in hub.revisions:
                    self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body=body)
                else:
                    self._send(200, json.dumps(hub.described(revision)).encode(), {}, body=body)
            elif "/".join(parts[:2]) == hub.name and parts[2] == "resolve":
                self._file("/".join(parts[4:]), body=body)
            else:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)

        def _file(self, file: str, *, body: bool) -> None:
            if file not in hub.files:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)
                return
            true = hub.files[file]
            etag = hashlib.sha256(true).hexdigest() if file.endswith(LARGE) else git_sha1(true)
            content, status = hub.lies.get(file, true), 200
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
            if wanted := self.headers.get("Range"):
                start = int(wanted.removeprefix("bytes=").split("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                content, status = content[start:], 206
            self._send(
                status,
                content,
                headers,
                body=body,
                cut=hub.cut_once.pop(file, None) if body else None,
            )

        def _send(
            self,
            status: int,
            content: bytes,
            headers: dict[str, str],
            *,
            body: bool,
            cut: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content[:cut])
                if cut is not None:
                    self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
