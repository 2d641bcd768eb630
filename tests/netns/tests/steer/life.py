# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What servers do with a listening socket and its event set besides accepting. Answers each connection at once.

It says "listening" when it waits.
"""
import os
import select
import socket
import sys

way, ports = sys.argv[1], [int(port) for port in sys.argv[2].split("-")]


def listener(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if way == "group-pauses":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("0.0.0.0", port))
    s.listen(64)
    s.setblocking(False)
    return s


def accept(s):
    try:
        connection, _ = s.accept()
    except BlockingIOError:
        return False
    os.write(1, b"accepted\n")
    connection.settimeout(10)
    connection.recv(100)
    connection.sendall(f"{os.getpid()} 0.0.0.0 {s.getsockname()[1]}".encode())
    connection.close()
    return True


numbers = [ports[0]] * 3 if way == "group-pauses" else range(ports[0], ports[-1] + 1)
listeners = {s.fileno(): s for s in map(listener, numbers)}
first = next(iter(listeners.values()))


def pause():
    first.shutdown(socket.SHUT_RDWR)


def hidden_ports():
    """Of the class listeners, which are on loopback."""
    ports = []
    for fd in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{fd}"
        # the folder itself was among them
        if not os.path.lexists(path) or not os.readlink(path).startswith("socket:"):
            continue
        with socket.socket(fileno=os.dup(int(fd))) as copy:
            if copy.family == socket.AF_INET and copy.getsockname()[0] == "127.0.0.1":
                ports.append(copy.getsockname()[1])
    return ports


if way == "group-pauses":
    for s in listeners.values():
        s.shutdown(socket.SHUT_RDWR)
    # not in the order in which they listened first
    for s in reversed(list(listeners.values())):
        s.listen(64)
    os.write(1, f"{len(hidden_ports())} on {len(set(hidden_ports()))}\n".encode())
if way in ("pauses", "leaves"):
    for _ in range(5):
        pause()
        first.listen(64)
if way == "leaves":
    # its place is for another program; it keeps the socket for the case that none comes
    pause()
    os.write(1, b"listening\n")
    sys.stdin.readline()
    sys.exit()
events = select.epoll()
for fd in listeners:
    events.register(fd, select.EPOLLIN | (select.EPOLLONESHOT if way == "one-shot" else 0))

if way == "child-closes":
    child = os.fork()
    if child == 0:
        first.close()
        os._exit(0)
    os.waitpid(child, 0)
if way == "spawns":
    os.set_inheritable(first.fileno(), True)
    actions = [(os.POSIX_SPAWN_CLOSE, first.fileno())]
    helper = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ, file_actions=actions)
    os.write(1, f"{helper}\n".encode())
if way == "replaces":
    try:
        os.dup2(9999, first.fileno())
    except OSError:
        pass

os.write(1, b"listening\n")
if way == "one-shot":
    # connections of two classes wait when the word comes
    sys.stdin.readline()
    told = events.poll(30)
    told += events.poll(1)
    os.write(1, f"told {len(told)}\n".encode())
    while accept(first):
        pass
    events.modify(first.fileno(), select.EPOLLIN)
while True:
    for fd, _ in events.poll():
        accept(listeners[fd])
