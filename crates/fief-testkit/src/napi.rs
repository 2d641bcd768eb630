// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which kernel threads receive for an interface (threaded NAPI).
//!
//! Thread names carry the interface's name, and every topology has an interface of the same name; so the kernel is
//! asked by generic netlink (family `netdev`, napi-get), which answers for one interface of one namespace.

use crate::{Error, NetNs, Result};
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockType, recv, sendto};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const CONTROLLER: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_PID: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;

/// The NAPI threads of one interface; empty while it polls in softirq.
pub fn napi_threads(namespace: &NetNs, interface: &str) -> Result<Vec<u32>> {
    namespace.run(|| {
        let index = nix::net::if_::if_nametoindex(interface)
            .map_err(|errno| Error::errno(format!("find interface {interface}"), errno))?;
        let socket = Socket::open()?;
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        let families = socket.ask(CONTROLLER, CTRL_CMD_GETFAMILY, 0, &name)?;
        let family = families
            .iter()
            .flat_map(|message| attributes(message))
            .find_map(|(kind, value)| (kind == CTRL_ATTR_FAMILY_ID).then(|| u16_of(value))?)
            .ok_or_else(|| Error::new(crate::Kind::Missing, "no netdev family in generic netlink"))?;
        let index = attribute(NETDEV_A_NAPI_IFINDEX, &index.to_ne_bytes());
        let answers = socket.ask(family, NETDEV_CMD_NAPI_GET, NLM_F_DUMP, &index)?;
        Ok(answers
            .iter()
            .flat_map(|message| attributes(message))
            .filter(|(kind, _)| *kind == NETDEV_A_NAPI_PID)
            .filter_map(|(_, value)| u32_of(value))
            .collect())
    })?
}

struct Socket(OwnedFd);

impl Socket {
    fn open() -> Result<Socket> {
        // SAFETY: socket() takes no pointers; a descriptor that it returns is nobody else's.
        let socket = unsafe {
            let raw = libc::socket(
                AddressFamily::Netlink as i32,
                SockType::Raw as i32 | SockFlag::SOCK_CLOEXEC.bits(),
                libc::NETLINK_GENERIC,
            );
            if raw < 0 {
                return Err(Error::io("open a generic netlink socket", std::io::Error::last_os_error()));
            }
            OwnedFd::from_raw_fd(raw)
        };
        Ok(Socket(socket))
    }

    /// Sends one command and collects the payloads of its answers, each without its two headers.
    fn ask(&self, family: u16, command: u8, flags: u16, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        let fail = |errno| Error::errno("ask generic netlink", errno);
        let length = u32::try_from(20 + payload.len()).expect("a request is short");
        let mut request = Vec::new();
        request.extend(length.to_ne_bytes());
        request.extend(family.to_ne_bytes());
        request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        request.extend([0; 8]);
        request.extend([command, 1, 0, 0]);
        request.extend(payload);
        sendto(self.0.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty()).map_err(fail)?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; 65536];
        loop {
            let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).map_err(fail)?;
            let mut rest = &buffer[..length];
            while let Some((kind, body, next)) = message(rest) {
                match kind {
                    NLMSG_DONE => return Ok(answers),
                    NLMSG_ERROR => {
                        let code = body.get(..4).and_then(u32_of).unwrap_or_default().cast_signed();
                        return Err(fail(nix::errno::Errno::from_raw(-code)));
                    }
                    _ => answers.push(body.get(4..).unwrap_or_default().to_vec()),
                }
                rest = next;
            }
            if flags & NLM_F_DUMP == 0 {
                return Ok(answers);
            }
        }
    }
}

/// Type and body of the first message, and what follows it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32_of(bytes.get(..4)?)? as usize;
    let kind = u16_of(bytes.get(4..6)?)?;
    let body = bytes.get(16..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("an attribute is short");
    let mut bytes = Vec::new();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_of(bytes.get(..2)?)?);
        let kind = u16_of(bytes.get(2..4)?)?;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    })
}

fn u16_of(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?))
}

fn u32_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_they_were_written() {
        let bytes = [attribute(1, b"abc"), attribute(2, &7u32.to_ne_bytes())].concat();
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(1, &b"abc"[..]), (2, &7u32.to_ne_bytes()[..])]);
    }

    #[test]
    fn a_cut_message_is_no_message() {
        assert!(message(&[40, 0, 0, 0, 1]).is_none());
        assert!(attributes(&[8, 0, 1, 0, 9]).next().is_none());
    }
}
