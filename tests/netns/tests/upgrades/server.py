# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A server whose answer the path names. It says on a connection that is no longer HTTP everything again."""

import socket
import threading

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n"
OPEN = b"HTTP/1.1 200 A tunnel is established\r\n\r\n"
BEARS = b"HTTP/1.1 200 OK\r\nVia: 1.1 a\r\nContent-Lengths: 5\r\nContent-: 5\r\nX: Content-Length: 5\r\n\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\nServer: a\r\ntransfer-ENCODING:chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"


def plain(text, status=b"200 OK"):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text)


def echo(connection, rest):
    while rest:
        connection.sendall(rest)
        rest = connection.recv(65536)


def bytewise(connection, answer):
    for at in range(len(answer)):
        connection.sendall(answer[at : at + 1])


def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return
            data += more
        head, data = data.split(b"\r\n\r\n", 1)
        word = head.split(b" ")[1]
        if word.startswith(b"/public/wait"):
            # until bytes have come that the client was not asked for
            data += connection.recv(65536)
            connection.sendall(SWITCH)
        elif word.startswith(b"/public/bytewise"):
            bytewise(connection, SWITCH)
        elif word.startswith(b"/public/hints"):
            bytewise(connection, HINTS + SWITCH)
        elif word.startswith(b"/public/large"):
            connection.sendall(SWITCH + b"x" * 200000 + b"xyz")
        elif word.startswith(b"/public/101"):
            connection.sendall(SWITCH)
        elif word.startswith(b"/public/fake"):
            # another answer, in which a confirmation stands
            connection.sendall(plain(SWITCH + OPEN))
            continue
        elif word.startswith(b"tunnel"):
            connection.sendall(OPEN)
        elif word.startswith(b"bears"):
            bytewise(connection, HINTS + BEARS)
        elif word.startswith(b"taken"):
            # for a request like any other
            connection.sendall(plain(b"served it\n"))
            continue
        elif word.startswith(b"slowly"):
            bytewise(connection, plain(b"served it\n"))
            continue
        elif word.startswith(b"empty"):
            connection.sendall(plain(b"", b"200 OK"))
            continue
        elif word.startswith(b"chunks"):
            connection.sendall(CHUNKS)
            continue
        elif word.startswith(b"nothing"):
            connection.sendall(b"HTTP/1.1 204 No Content\r\nServer: a\r\n\r\n")
            continue
        elif word.startswith(b"closed"):
            connection.sendall(plain(b"no tunnel\n", b"405 Method Not Allowed"))
            continue
        else:
            connection.sendall(plain(b"served " + word + b"\n"))
            continue
        data = data or connection.recv(65536)
        echo(connection, data)
        return


def guarded(connection):
    try:
        serve(connection)
    except OSError:
        pass
    connection.close()


def main():
    listener = socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=guarded, args=(connection,), daemon=True).start()


main()
