# SPDX-License-Identifier: Apache-2.0 OR MIT
# A WSGI application that answers each request with its path, and writes the path into the file ANSWERED.
import os

FILE = os.open(os.environ["ANSWERED"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)


def app(environ, start_response):
    environ["wsgi.input"].read()
    path = environ["PATH_INFO"].encode()
    os.write(FILE, path + b"\n")
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(path)))])
    return [path]
