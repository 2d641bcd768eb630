# SPDX-License-Identifier: Apache-2.0 OR MIT
# A WSGI application. A request costs ROUNDS (of the environment) rounds of SHA-256 over 1 kB.
import hashlib
import os

ROUNDS = int(os.environ["ROUNDS"])
BLOCK = bytes(1024)
PAGE = b"x" * 1024


def app(environ, start_response):
    for _ in range(ROUNDS):
        hashlib.sha256(BLOCK).digest()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(PAGE)))])
    return [PAGE]
