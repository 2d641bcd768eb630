# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A server of Python's own http.server, and a client of http.client. Usage: web.py serve PORT | web.py ask HOST PORT"""
import hashlib
import http.client
import http.server
import socket
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        told = hashlib.sha256(sent).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True


def ask(host, port):
    """Posts ever more on one connection, then on one after the other."""
    good = 0
    kept = http.client.HTTPConnection(host, port, timeout=20)
    for n in range(40):
        connection = kept if n < 20 else http.client.HTTPConnection(host, port, timeout=20)
        sent = bytes([n]) * (n * n * 100)
        connection.request("POST", f"/{n}", sent, {"X-Number": str(n)})
        good += connection.getresponse().read().decode() == hashlib.sha256(sent).hexdigest()
        if n >= 20:
            connection.close()
    print(good)


if sys.argv[1] == "serve":
    Server(("::", int(sys.argv[2])), Handler).serve_forever()
else:
    ask(sys.argv[2], int(sys.argv[3]))
