// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filtered listeners: several listening sockets on one address and port, each for the clients that its filter names
//! (Resource Containers, section 4.8).

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::abi;
use crate::container::Container;
use crate::error::{Error, Result};
use crate::option;

/// Which clients a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    address: IpAddr,
    prefix: u8,
    complement: bool,
}

impl Filter {
    /// Every client that no other filter on the address names.
    pub fn any() -> Self {
        Self { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix: 0, complement: false }
    }

    /// Clients of a network: address and length of the prefix.
    ///
    /// Errors: a length beyond the address's.
    pub fn network(address: IpAddr, prefix: u8) -> Result<Self> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            return Err(Error::new("cannot make a filter", io::Error::from_raw_os_error(libc::EINVAL)));
        }
        Ok(Self { address, prefix, complement: false })
    }

    /// Every client but those of the network.
    #[must_use]
    pub fn complement(mut self) -> Self {
        self.complement = !self.complement;
        self
    }

    fn record(&self) -> abi::fief_filter {
        let (address, prefix) = match self.address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped(), self.prefix + 96),
            IpAddr::V6(v6) => (v6, self.prefix),
        };
        abi::fief_filter {
            address: address.octets(),
            prefix_length: prefix,
            complement: self.complement.into(),
            ..Default::default()
        }
    }
}

/// Listens on `address` for the clients that `filter` names; their connections are `container`'s.
///
/// The longest prefix wins; after all of them comes the one complement that an address can have. Clients that no filter
/// names are refused. The address names its port.
///
/// Errors: not managed; address in use if the same filter listens there already, if the address is one of the policy's
/// or another user's; address not available in a network namespace that no policy serves.
pub fn bind_filtered(address: SocketAddr, filter: Filter, container: &Container) -> Result<TcpListener> {
    let fail = |e| Error::new("cannot listen with a filter", e);
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    {
        let _bound = container.bind()?;
        option::set(socket.as_fd(), abi::FIEF_FILTER, &filter.record()).map_err(fail)?;
        option::call(socket.as_fd(), abi::FIEF_ASSIGN).map_err(fail)?;
    }
    // The kernel lets only sockets of one user share an address, and only those that say so.
    for name in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
        let on: libc::c_int = 1;
        // SAFETY: the value and its length are those of `on`.
        let err = unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const on).cast(), size_of_val(&on) as _)
        };
        if err != 0 {
            return Err(fail(io::Error::last_os_error()));
        }
    }
    bind(&socket, address).map_err(fail)?;
    // SAFETY: the descriptor is open, no pointers are passed.
    if unsafe { libc::listen(socket.as_raw_fd(), 1024) } != 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    Ok(TcpListener::from(socket))
}

fn bind(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    let err = match address {
        SocketAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the address and its length are those of `name`.
            unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&name).cast(), size_of_val(&name) as _) }
        }
        SocketAddr::V6(v6) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the address and its length are those of `name`.
            unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&name).cast(), size_of_val(&name) as _) }
        }
    };
    if err == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
