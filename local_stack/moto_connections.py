"""Connections to moto's server that stay open, as those to AWS do.

werkzeug's server closes each after one answer, because it may answer before it has read the whole request.  Here the
request is read first.  A client keeps its connection then, and neither side makes a new socket and thread per request.
Source: RFC 9112, section 9.3 (Persistence).
"""

from __future__ import annotations

import io

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.exceptions import InternalServerError
from werkzeug.serving import BaseWSGIServer
from werkzeug.test import run_wsgi_app

_WITHOUT_BODY = (204, 304)


class KeptConnection(MotoRequestHandler):
    """One client's requests, one after the other."""

    protocol_version = "HTTP/1.1"
    # Head and body of an answer go out in one piece: else Nagle's algorithm holds the second one back for 40 ms.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: BaseWSGIServer

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return True

    def run_wsgi(self) -> None:
        """Read the request to its end, have moto answer it, and send the answer with its length."""
        self.environ = environ = self.make_environ()
        is_chunked = environ.get("wsgi.input_terminated", False)
        length = -1 if is_chunked else int(self.headers.get("Content-Length") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        try:
            parts, status, headers = run_wsgi_app(self.server.app, environ, buffered=True)
        except Exception as error:
            self.log("error", "moto failed: %r", error)
            parts, status, headers = run_wsgi_app(InternalServerError(), environ, buffered=True)
        body = b"".join(parts)
        number, _, reason = status.partition(" ")
        has_body = self.command != "HEAD" and int(number) not in _WITHOUT_BODY
        self.send_response(int(number), reason)
        for name, value in headers:
            if has_body and name.lower() == "content-length":
                continue
            self.send_header(name, value)
        if has_body:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if has_body else b"")
        self.wfile.flush()
