# SPDX-License-Identifier: Apache-2.0 OR MIT
# Python's http.server as its own file handler reads paths: decoded and resolved. Any method is served that is a token: a
# handler has a function for each, and no word of another kind can be the name of one. A body is read
# where a method usually has one.
import http.server
import posixpath
import re
import socketserver
import ssl
import threading
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def __getattr__(self, name):
        if re.fullmatch("do_[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            return self.serve
        raise AttributeError(name)

    def what(self):
        target = urllib.parse.urlsplit(self.path.split("?", 1)[0].split("#", 1)[0])
        path = posixpath.normpath(urllib.parse.unquote(target.path, errors="surrogateescape"))
        path = "/" + path.lstrip("/")
        if path.startswith("/marker"):
            return b"@MARKER@"
        host = (self.headers.get("Host") or "").strip().rsplit(":", 1)[0].lower()
        refused = path.startswith("/secret") or host == "secret.example" or self.headers.get("X-Secret") == "yes"
        return b"@REFUSED@" if refused else b"@PLAIN@"

    def serve(self):
        if self.command in ("POST", "PUT", "PATCH"):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = self.what()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 4096

    def handle_error(self, request, client_address):
        pass


def context(name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(f"@ROOT@/{name}.pem")
    return context


PLAIN, SECRET = context("plain"), context("secret")


def choose(connection, name, _):
    if (name or "").lower() == "secret.example":
        connection.context = SECRET


PLAIN.sni_callback = choose


class Names(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.settimeout(30)
        try:
            PLAIN.wrap_socket(self.request, server_side=True).recv(1)
        except OSError:
            pass


servers = [Server(("0.0.0.0", port), Handler) for port in (@RESET@, @UNAVAILABLE@, @OPEN@)]
servers += [Server(("0.0.0.0", port), Names) for port in (@TLS@, @TLS-OPEN@)]
threads = [threading.Thread(target=server.serve_forever) for server in servers]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
