"""Files for a page, served by our server in place of its own, or by another one with TLS."""

from __future__ import annotations

import contextlib
import http.server
import mimetypes
import ssl
import threading
from collections.abc import Iterator, Mapping

from barrage.web import web_door
from barrage.web.static_files import StaticFile


class WebPages:
    """By their paths."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = {
            path: StaticFile(
                content_type=_type_of(path), body=body, packed=None, tag=path, is_lasting=False
            )
            for path, body in files.items()
        }

    def serve_with(self, patch) -> None:
        """Servers that begin from now on have these."""
        patch.setattr(web_door, "read_files", lambda: self._files)

    @contextlib.contextmanager
    def served(self, tls: Mapping[str, str]) -> Iterator[str]:
        """The origin of another server that has them."""
        files = self._files

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                file = files.get(self.path)
                self.send_response(404 if file is None else 200)
                if file is not None:
                    self.send_header("content-type", file.content_type)
                    self.end_headers()
                    self.wfile.write(file.body)
                else:
                    self.end_headers()

            def log_message(self, *_words) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls["tls_cert"], tls["tls_key"])
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join(60)


def _type_of(path: str) -> str:
    if path.endswith((".js", ".mjs")):
        return "text/javascript"
    if path.endswith("/"):
        return "text/html"
    return mimetypes.guess_type(path)[0] or "application/octet-stream"
