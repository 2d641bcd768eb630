// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server of Python's standard library.

/// Its text. It listens at port 80 of both families; `answer` tells what it served. `methods` are the lines of the class that say
/// which methods it answers.
pub fn python_server(methods: &str) -> String {
    format!(
        r#"
import http.server, os, socket, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        body = ("served " + self.path + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
{methods}
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
Server(("::", 80), Handler).serve_forever()
"#
    )
}
