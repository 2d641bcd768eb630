# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A server in one of the ways in which servers wait for connections.

It listens, says "listening", waits for a line on its standard input, so that connections can queue up, and then serves.
For each connection it prints the client's address, and answers with its process id and the address that it sees as its
own. "told" is level-triggered, and prints "::" when it accepts.
"""
import ctypes
import os
import select
import socket
import sys
import threading

way, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
workers = int(sys.argv[4]) if len(sys.argv) > 4 else 3
family = socket.AF_INET6 if ":" in host else socket.AF_INET


def listener():
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if way == "group":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind((host, port))
    return s


def wait_for_the_word():
    os.write(1, b"listening\n")
    sys.stdin.readline()


def serve(connection, address):
    os.write(1, (address[0].replace("::ffff:", "") + "\n").encode())
    connection.settimeout(10)
    connection.recv(100)
    own = connection.getsockname()
    connection.sendall(f"{os.getpid()} {own[0].replace('::ffff:', '')} {own[1]}".encode())
    connection.close()


def accept_for_ever(s):
    while True:
        try:
            serve(*s.accept())
        except (TimeoutError, BlockingIOError):
            pass


def fork_workers(sockets):
    for s in sockets:
        if os.fork() == 0:
            for other in sockets:
                if other is not s:
                    other.close()
            accept_for_ever(s)
    while True:
        os.wait()


def with_events(s, edge):
    flags = select.EPOLLIN | (select.EPOLLET if edge else 0)
    events = select.epoll()
    events.register(s, flags)
    waiting = {}
    wait_for_the_word()
    while True:
        for fd, _ in events.poll(30):
            if fd in waiting:
                events.unregister(fd)
                serve(*waiting.pop(fd))
                continue
            while True:
                try:
                    connection, address = s.accept()
                except BlockingIOError:
                    break
                if way == "told":
                    os.write(1, b"::\n")
                connection.setblocking(False)
                waiting[connection.fileno()] = connection, address
                events.register(connection.fileno(), flags)
                if not edge:
                    break


def main():
    if way == "inherited":
        s = socket.socket(fileno=int(os.environ["LISTENER"]))
        wait_for_the_word()
        accept_for_ever(s)
    if way == "io_uring":
        parameters = ctypes.create_string_buffer(120)
        if ctypes.CDLL(None).syscall(425, 1, parameters) < 0:
            print("no io_uring")
    s = listener()
    if way == "group":
        sockets = [s] + [listener() for _ in range(5)]
        for each in sockets:
            each.listen(64)
        wait_for_the_word()
        fork_workers(sockets)
    s.listen(256)
    if way in ("blocking", "io_uring"):
        wait_for_the_word()
        accept_for_ever(s)
    if way == "timeout":
        s.settimeout(0.05)
        wait_for_the_word()
        accept_for_ever(s)
    if way == "duplicate":
        copy = socket.socket(fileno=os.dup(s.fileno()))
        s.close()
        wait_for_the_word()
        accept_for_ever(copy)
    if way == "forked":
        wait_for_the_word()
        fork_workers([socket.socket(fileno=os.dup(s.fileno())) for _ in range(workers)])
    if way == "threads":
        wait_for_the_word()
        for _ in range(2):
            threading.Thread(target=accept_for_ever, args=(s,), daemon=True).start()
        accept_for_ever(s)
    if way == "exec-later":
        wait_for_the_word()
    if way in ("exec", "exec-later"):
        os.set_inheritable(s.fileno(), True)
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        environment["LISTENER"] = str(s.fileno())
        os.execve(sys.executable, [sys.executable, __file__, "inherited", host, str(port)], environment)
    s.setblocking(False)
    if way == "poll":
        asked = select.poll()
        asked.register(s, select.POLLIN)
        wait_for_the_word()
        while True:
            asked.poll()
            serve(*s.accept())
    if way == "select":
        wait_for_the_word()
        while True:
            select.select([s], [], [])
            serve(*s.accept())
    with_events(s, way == "edge-triggered")


main()
