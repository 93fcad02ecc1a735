"""A small Iceberg REST catalog over local tables, for peers that speak nothing else; it runs in the suite's process.

Commits are applied and swapped by Icekeeper's SQL catalog, so requirements are really checked.  One namespace, ``ns``.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import CommitConflict, MaintenanceError
from icekeeper.model import TableName


class RestCatalogServer:
    """Serves until :meth:`close`."""

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        """``more`` are properties of a store that has the tables."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rest.db").unlink(missing_ok=True)
        properties = {"type": "sql", "uri": f"sqlite:///{folder / 'rest.db'}", "warehouse": folder.parent.as_uri()}
        properties |= more or {}
        self._pyiceberg = SqlCatalog("rest", **properties)
        self._pyiceberg.create_namespace("ns")
        self._catalog = open_catalog("rest", properties)
        self._lock = threading.Lock()
        self._tables = 0
        handler = _handler(self._catalog, self._lock)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def register(self, metadata_location: str) -> str:
        """A new name for a table at this state."""
        self._tables += 1
        name = f"ns.t{self._tables}"
        with self._lock:
            self._pyiceberg.register_table(name, metadata_location)
        return name

    def metadata_location(self, name: str) -> str:
        """Where the table's metadata are by now."""
        with self._lock:
            return self._catalog.load(TableName.parse(name)).metadata_location

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._pyiceberg.close()


def _described(loaded: LoadedTable) -> dict[str, Any]:
    return {"metadata-location": loaded.metadata_location, "metadata": loaded.metadata.document, "config": {}}


def _handler(catalog: Catalog, lock: threading.Lock) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

        def do_HEAD(self) -> None:
            self._answer(204, None)

        def do_GET(self) -> None:
            self._handle(None)

        def do_POST(self) -> None:
            self._handle(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"))

        def _handle(self, body: dict[str, Any] | None) -> None:
            parts = urllib.parse.urlparse(self.path).path.strip("/").split("/")
            try:
                with lock:
                    self._answer(200, self._result(parts, body))
            except CommitConflict as error:
                self._refuse(409, "CommitFailedException", str(error))
            except MaintenanceError as error:
                self._refuse(404, "NoSuchTableException", str(error))
            except Exception as error:
                self._refuse(500, type(error).__name__, str(error))

        def _result(self, parts: list[str], body: dict[str, Any] | None) -> dict[str, Any]:
            match parts[1:]:
                case ["config"]:
                    return {"defaults": {}, "overrides": {}}
                case ["namespaces"]:
                    return {"namespaces": [["ns"]]}
                case ["namespaces", name]:
                    return {"namespace": [name], "properties": {}}
                case ["namespaces", name, "tables"]:
                    tables = [{"namespace": [name], "name": str(t).partition(".")[2]} for t in catalog.list_tables()]
                    return {"identifiers": tables}
                case ["namespaces", name, "tables", table]:
                    loaded = catalog.load(TableName((name,), table))
                    if body is not None:
                        loaded = catalog.commit(loaded, body.get("requirements", []), body.get("updates", []))
                    return _described(loaded)
            raise ValueError(f"the suite's catalog has no {self.path}")

        def _refuse(self, code: int, kind: str, message: str) -> None:
            self._answer(code, {"error": {"message": message, "type": kind, "code": code}})

        def _answer(self, code: int, document: dict[str, Any] | None) -> None:
            data = b"" if document is None else json.dumps(document).encode()
            self.send_response(code)
            if document is not None:
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
