// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What listens by the text of /proc/net/tcp and tcp6, for kernels that were built without inet_diag. It tells neither the upper
//! protocol nor the cgroup.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::Listening;

const LISTENS: &str = "0A"; // TCP_LISTEN

/// Of the network namespace of this thread.
pub(super) fn find() -> io::Result<Vec<Listening>> {
    let mut found = lines(&std::fs::read_to_string("/proc/thread-self/net/tcp")?);
    match std::fs::read_to_string("/proc/thread-self/net/tcp6") {
        Ok(text) => found.extend(lines(&text)),
        // a kernel without IPv6
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

fn lines(text: &str) -> Vec<Listening> {
    text.lines().filter_map(line).collect()
}

/// Number, own address, the other's, state, queues, timer, retransmissions, user, timeout, inode.
fn line(line: &str) -> Option<Listening> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let address = address(words.next()?)?;
    (words.nth(1)? == LISTENS).then_some(())?;
    let inode = words.nth(5)?.parse().ok()?;
    Some(Listening { address, multipath: false, cgroup: None, inode, cookie: None })
}

/// Words of 32 bits as the CPU has them, and the port as people write it.
fn address(word: &str) -> Option<SocketAddr> {
    let (ip, port) = word.split_once(':')?;
    let bytes = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::from(bytes(0)?),
        32 => {
            let words = [bytes(0)?, bytes(8)?, bytes(16)?, bytes(24)?];
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    #[test]
    fn both_ways_tell_of_the_same_sockets() {
        let own = ["127.0.0.1:0", "[::1]:0"].map(|address| TcpListener::bind(address).expect("a listener"));
        let by_table = find().expect("the kernel's table");
        let by_netlink = super::super::by_netlink().expect("the kernel answers");
        for address in own.iter().map(|socket| socket.local_addr().expect("bound")) {
            let inodes = |all: &[Listening]| -> BTreeSet<u32> {
                all.iter().filter(|one| one.address == address).map(|one| one.inode).collect()
            };
            assert_eq!(inodes(&by_table).len(), 1, "{by_table:?}");
            assert_eq!(inodes(&by_table), inodes(&by_netlink));
        }
    }

    #[test]
    fn what_does_not_listen_is_left_out() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                    \x20  0: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17 1 0\n\
                    \x20  1: 0100007F:0051 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 18 1 0\n";
        let found = lines(text);
        assert_eq!(found.iter().map(|one| (one.address.port(), one.inode)).collect::<Vec<_>>(), [(80, 17)]);
    }
}
