# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Resource containers for applications: create, bind, read; no privilege, no daemon.

A container is a file descriptor. It is inherited over fork, passed over UNIX sockets, and ends with its last descriptor and its
last bound thread. The calls are socket options, answered in the kernel where the process lives in a unit that Fief manages (`fief
run`, `fief exec`, `fief manage`).

    import fief

    gold = fief.Container(name="gold")
    with gold.bind():
        serve(request)  # what the thread does is gold's
    print(gold.usage().thread_ns)

Each call raises OSError; NotManaged where nobody manages the process. Rings, by which threads of root bind themselves
without a call, have their records here and no calls: they are for loops that would lose more in Python than a call costs.
`fief interface` writes this file; its records are those of the kernel side.
"""

import contextlib
import ctypes
import errno
import ipaddress
import socket

# @RECORDS@


class NotManaged(OSError):
    """No Fief answers: start the process by `fief run` or `fief exec`, or `fief manage` it."""


def _failed(error):
    # the last is IPv4's own answer, to a question, at a level that it does not know
    if error.errno in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
        return NotManaged(errno.ENOPROTOOPT, NotManaged.__doc__)
    return error


def _set(of, option, value=None, valid=None):
    """`valid`: what the value has to be."""
    try:
        of.setsockopt(FIEF_SOL, option, *((None, 0) if value is None else (bytes(value),)))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise
        if error.errno == errno.EINVAL and valid:
            raise OSError(errno.EINVAL, valid) from None
        raise _failed(error) from None


def _get(of, option, record):
    try:
        size = ctypes.sizeof(record)
        # an older version in force tells less of a record
        return record.from_buffer_copy(of.getsockopt(FIEF_SOL, option, size).ljust(size, b"\0"))
    except OSError as error:
        raise _failed(error) from None


def _fresh(option, value=None, valid=None):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        _set(made, option, value, valid)
    except BaseException:
        made.close()
        raise
    return made


_NAME = "a name has 1 to 31 bytes of ASCII, without `/` and control characters"


class Container:
    """A container, by a descriptor of it; `fd` takes one that was inherited or received."""

    def __init__(self, *, name=None, weight=0, pass_up=False, fd=None):
        if fd is None:
            flags = FIEF_CREATE_PASS_UP if pass_up else 0
            self._socket = _fresh(FIEF_CREATE, fief_create(flags=flags, weight=weight), "a weight is 1 to 10000")
        else:
            self._socket = socket.socket(fileno=fd)
        if name is not None:
            self.set_name(name)

    @classmethod
    def _of(cls, made):
        own = cls.__new__(cls)
        own._socket = made
        return own

    def fileno(self):
        return self._socket.fileno()

    def close(self):
        """Lets go of it; with the last holder it ends."""
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @contextlib.contextmanager
    def bind(self):
        """The thread works for the container inside of a `with`."""
        before = None
        try:
            _set(self._socket, FIEF_ENTER)
        except OSError as error:
            if error.errno != errno.EBUSY:  # more of them than the kernel remembers by itself
                raise
            # as the thread is bound to it now: it may do no less later
            before = Container._of(_fresh(FIEF_OPEN_BINDING, ctypes.c_uint32(FIEF_RIGHTS_ALL)))
            self.bind_thread()
        try:
            yield self
        finally:
            if before is None:
                _set(self._socket, FIEF_LEAVE)
            else:
                before.bind_thread()
                before.close()

    def bind_thread(self):
        """The thread works for the container from here on: the cheapest way to switch."""
        _set(self._socket, FIEF_BIND)

    def bind_other(self, thread):
        """Binds another thread, by its number. The caller must be allowed to signal it."""
        _set(self._socket, FIEF_BIND, fief_bind(thread=thread))

    def child(self, **options):
        """A new container below this one."""
        with self.bind():
            return Container(**options)

    def renew(self):
        """The descriptor becomes one of a new container, and lets go of the former."""
        _set(self._socket, FIEF_RENEW)

    def duplicate(self):
        """One more descriptor with the same rights."""
        _set(self._socket, FIEF_STAGE)
        return Container._of(_fresh(FIEF_DUP))

    def adopt(self):
        """It becomes a child of the thread's container."""
        _set(self._socket, FIEF_ADOPT)

    def set(self, attribute, value):
        """FIEF_ATTR_* and its value."""
        _set(self._socket, FIEF_SET_ATTRIBUTE, fief_set_attribute(attribute=attribute, value=value))

    def set_name(self, name):
        """One part of a path: 1 to 31 bytes of ASCII, without `/` and control characters."""
        name = name.encode()
        if not name or b"\0" in name:  # the kernel side sees a name up to there
            raise OSError(errno.EINVAL, _NAME)
        _set(self._socket, FIEF_SET_NAME, name, _NAME)

    def keep_rights(self, rights):
        """FIEF_RIGHT_*: those that stay, before the descriptor is passed on."""
        _set(self._socket, FIEF_DROP_RIGHTS, ctypes.c_uint32(rights))

    def usage(self):
        """What it has used, with what running threads have so far."""
        return _get(self._socket, FIEF_USAGE, fief_usage)

    def attributes(self):
        return _get(self._socket, FIEF_ATTRIBUTES, fief_attributes)

    def info(self):
        """Its place, its holders and its name."""
        return _get(self._socket, FIEF_INFO, fief_info)

    def assign(self, to):
        """Labels a socket: work for it is this container's, which lives at least as long."""
        with self.bind():
            _set(to, FIEF_ASSIGN)


def open_current():
    """The container that the thread is bound to."""
    return Container._of(_fresh(FIEF_OPEN_BINDING))


def unbind():
    """The thread returns home."""
    with open_current() as current:
        _set(current._socket, FIEF_UNBIND)


def reset_scheduler_binding():
    """The thread is scheduled for the container that it is bound to alone, and no more for those that it served lately."""
    with open_current() as current:
        _set(current._socket, FIEF_RESET_SCHEDULER_BINDING)


def unassign(labelled):
    """Removes a socket's label."""
    _set(labelled, FIEF_UNASSIGN)


def listen_to(unbound, network, container, complement=False):
    """A TCP socket, before bind(): it listens to clients of this network only, for the container. It needs SO_REUSEPORT."""
    network = ipaddress.ip_network(network)
    is_ipv4 = network.version == 4
    address = b"\0" * 10 + b"\xff" * 2 + network.network_address.packed if is_ipv4 else network.network_address.packed
    record = fief_filter(prefix_length=network.prefixlen + (96 if is_ipv4 else 0), complement=complement)
    record.address[:] = address
    with container.bind():
        _set(unbound, FIEF_FILTER, record)
        _set(unbound, FIEF_ASSIGN)


def drops(listener):
    """What a listening socket never saw: fief_drops."""
    return _get(listener, FIEF_DROPS, fief_drops)
