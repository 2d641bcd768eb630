# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sends pieces to a server over TCP or multipath TCP: client.py tcp|mptcp HOST PIECE ...

Prints the status of each answer, "reset", or "end". A piece "+" waits for an answer to what was sent; "ack" as the first piece
waits until the connection is there on this side.
"""
import errno, re, socket, sys

protocol = 262 if sys.argv[1] == "mptcp" else 0
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM, protocol)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.settimeout(20)
s.connect((sys.argv[2], 80))
rest = b""


def answer():
    global rest
    while True:
        whole = re.match(rb"HTTP/1.1 (\d+).*?\r\n\r\n", rest, re.S)
        if whole:
            length = re.search(rb"[Cc]ontent-[Ll]ength: (\d+)", whole.group(0))
            end = whole.end() + (int(length.group(1)) if length else 0)
            if len(rest) >= end:
                rest = rest[end:]
                return whole.group(1).decode()
        try:
            more = s.recv(65536)
        except ConnectionError:
            return "reset"
        except OSError as error:
            # what multipath TCP says, depending on when the reset of its only path was seen
            if error.errno != errno.ENOTCONN:
                raise
            return "reset"
        if not more:
            return "end"
        rest += more


told = []
for piece in sys.argv[3:]:
    if piece == "+":
        told.append(answer())
        continue
    try:
        s.sendall(piece.encode().decode("unicode_escape").encode())
    except ConnectionError:
        pass
print(" ".join(told))
