"""Keys that expire, as AWS gives them to containers and jobs: over HTTP, to each role its own.

Source: AWS SDKs and tools reference guide, "Container credential provider", "Process credential provider".
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from icekeeper.machine.clock import iso_utc, system_clock

KEY_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
)
"""What boto3 would take instead of asking the server."""
_HOUR_S = 3600
_EXPIRE = "/-/expire"
_POLL_S = 0.02
_numbers = itertools.count(1)  # no two servers give the same keys


@dataclass
class CredentialServer:
    """A server that runs."""

    endpoint: str = ""
    life_s: int = _HOUR_S
    """How long keys last by their own date.  With less than ten minutes, boto3 asks anew before every request."""
    roles: dict[str, str] = field(default_factory=dict)
    """By access key: whose it is; of all keys that were ever given and have not expired."""
    written: dict[str, Path] = field(default_factory=dict)
    """By role: a file that always holds its keys, as a credential process prints them."""
    _current: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def environment(self, role: str) -> dict[str, str]:
        """The variables that make a process ask for the keys of a role."""
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.endpoint}/{role}", "AWS_EC2_METADATA_DISABLED": "true"}

    @property
    def expiry_endpoint(self) -> str:
        """Where another process asks for :meth:`expire`."""
        return self.endpoint + _EXPIRE

    def expire(self) -> None:
        """Expire all keys that were given so far; the next request gets new keys."""
        with self._lock:
            self.roles.clear()
            self._current.clear()
        self.write()

    def write(self) -> None:
        """Write the current keys to the files of :attr:`written`."""
        for role, path in self.written.items():
            keys = dict(self.answer(role))
            path.write_text(json.dumps({"Version": 1, "SessionToken": keys.pop("Token"), **keys}))

    def answer(self, role: str) -> Mapping[str, str]:
        """The answer to every request for keys."""
        with self._lock:
            key = self._current.get(role)
            if key is None:
                key = self._current[role] = f"ASIA{next(_numbers):012d}"
                self.roles[key] = role
        expiry = iso_utc(system_clock() + self.life_s * 1000)
        return {
            "AccessKeyId": key,
            "SecretAccessKey": f"secret-of-{key}",
            "Token": f"token-{key}",
            "Expiration": expiry,
        }


@contextmanager
def running_credential_server(life_s: int = _HOUR_S) -> Iterator[CredentialServer]:
    """A server on loopback, on a free port."""
    served = CredentialServer(life_s=life_s)

    class Handler(_Answers):
        server_of_keys = served

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.daemon_threads = True
        served.endpoint = f"http://127.0.0.1:{httpd.server_address[1]}"
        thread = threading.Thread(target=httpd.serve_forever, args=(_POLL_S,), daemon=True)
        thread.start()
        try:
            yield served
        finally:
            httpd.shutdown()
            thread.join()


class _Answers(BaseHTTPRequestHandler):
    server_of_keys: CredentialServer

    def do_GET(self) -> None:
        if self.path == _EXPIRE:
            self.server_of_keys.expire()
        body = json.dumps(self.server_of_keys.answer(self.path.strip("/"))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: who asks is no news."""
