// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's tables over netlink, in the caller's network namespace: only the calls that the lanes and the checks before an
//! apply need. Both ask the kernel itself, not an installed tool.
//!
//! ```text
//! message:    length:u32 type:u16 flags:u16 sequence:u32 port:u32 payload...
//! attribute:  length:u16 type:u16 payload..., padded to 4 bytes
//! ```

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
const REQUEST_DUMP: u16 = 0x301; // NLM_F_REQUEST | NLM_F_DUMP
const REQUEST_ACK: u16 = 0x5; // NLM_F_REQUEST | NLM_F_ACK
const ECHO: u16 = 0x8;
const GENERIC_CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Before the attributes of a message of generic netlink: command, version, reserved.
pub(crate) const GENERIC_HEADER: usize = 4;
/// In the type of an attribute that holds others.
pub(crate) const NESTED: u16 = 0x8000;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const TYPE_MASK: u16 = 0x3fff; // the bits above say: nested, byte order
/// In the flags of a message: the table has changed since the dump began, so some of it may be missing.
const INTERRUPTED: u16 = 0x10;
/// So often a dump is asked for; where the table never rests, the last one counts.
const DUMPS: usize = 20;

/// The payloads of all messages of a dump.
pub(crate) fn dump(protocol: SockProtocol, kind: u16, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    ask(protocol, kind, REQUEST_DUMP, request)
}

/// One change, and the kernel's word on it. `flags` are those of the kind of change, as NLM_F_CREATE.
pub(crate) fn change(protocol: SockProtocol, kind: u16, flags: u16, request: &[u8]) -> io::Result<()> {
    ask(protocol, kind, REQUEST_ACK | flags, request).map(drop)
}

/// A change that makes something: the kernel's message about that.
pub(crate) fn made(protocol: SockProtocol, kind: u16, flags: u16, request: &[u8]) -> io::Result<Vec<u8>> {
    let told = ask(protocol, kind, REQUEST_ACK | ECHO | flags, request)?.into_iter().next();
    told.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the kernel does not tell what it made"))
}

/// The number of a family of generic netlink.
pub(crate) fn family(name: &str) -> io::Result<u16> {
    let families = dump(SockProtocol::NetlinkGeneric, GENERIC_CONTROLLER, &[GET_FAMILY, 1, 0, 0])?;
    families
        .iter()
        .map(|payload| payload.get(GENERIC_HEADER..).unwrap_or_default())
        .find(|payload| attribute(payload, FAMILY_NAME).is_some_and(|value| text(value) == name))
        .and_then(|payload| u16_at(attribute(payload, FAMILY_ID)?, 0))
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, format!("no generic netlink family {name}")))
}

fn ask(protocol: SockProtocol, kind: u16, flags: u16, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    // a kernel that never answers would hang the command
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(5))?;
    let mut answer = Answer::default();
    for _ in 0..DUMPS {
        answer = ask_by(&socket, kind, flags, request)?;
        if !answer.interrupted {
            break;
        }
    }
    Ok(answer.payloads)
}

/// What the kernel says to one request.
#[derive(Debug, Default)]
struct Answer {
    payloads: Vec<Vec<u8>>,
    interrupted: bool,
}

fn ask_by(socket: &OwnedFd, kind: u16, flags: u16, request: &[u8]) -> io::Result<Answer> {
    let mut message = Vec::with_capacity(HEADER + request.len());
    message.extend(((HEADER + request.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(request);
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut answer = Answer::default();
    let mut buffer = vec![0; 65_536];
    loop {
        let (got, from) = recvfrom::<NetlinkAddr>(socket.as_raw_fd(), &mut buffer)?;
        // whoever administers the network namespace can send too, as the root of a container can in its own
        let is_kernel = from.is_some_and(|from| from.pid() == 0);
        if is_kernel && !read_messages(&buffer[..got], &mut answer)? {
            return Ok(answer);
        }
    }
}

/// False: that was the last.
fn read_messages(mut rest: &[u8], answer: &mut Answer) -> io::Result<bool> {
    while let Some(length) = u32_at(rest, 0).map(|length| length as usize) {
        let Some(payload) = rest.get(HEADER..length) else { return Err(io::ErrorKind::InvalidData.into()) };
        answer.interrupted |= u16_at(rest, 6).is_some_and(|flags| flags & INTERRUPTED != 0);
        match u16_at(rest, 4) {
            Some(DONE) => return Ok(false),
            Some(ERROR) => match u32_at(payload, 0).map(u32::cast_signed) {
                Some(0) => return Ok(false),
                Some(errno) => return Err(io::Error::from_raw_os_error(-errno)),
                None => return Err(io::ErrorKind::InvalidData.into()),
            },
            _ => answer.payloads.push(payload.to_owned()),
        }
        rest = rest.get(padded(length)..).unwrap_or_default();
    }
    Ok(true)
}

/// The attributes in a payload: type and value. What is cut short ends them.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & TYPE_MASK;
        let value = rest.get(ATTRIBUTE..length)?;
        rest = rest.get(padded(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attribute of a type.
pub(crate) fn attribute(payload: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(payload).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// An attribute as it is sent.
pub(crate) fn attribute_bytes(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((ATTRIBUTE + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(padded(bytes.len()), 0);
    bytes
}

/// A string with its NUL, as the kernel wants names.
pub(crate) fn terminated(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// A string up to its NUL.
pub(crate) fn text(value: &[u8]) -> &str {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).unwrap_or("?")
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use fief_testkit::{Feature, require};
    use nix::sys::socket::{bind, getsockname, sendto};

    use super::*;

    const GET_LINKS: u16 = 18;

    fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut message = ((HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(payload);
        message
    }

    fn route_socket() -> OwnedFd {
        let own = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute);
        let own = own.expect("a socket");
        bind(own.as_raw_fd(), &NetlinkAddr::new(0, 0)).expect("a port of its own");
        own
    }

    #[test]
    fn what_somebody_else_sends_is_no_answer() {
        if !require(Feature::Root) {
            return;
        }
        let [asks, forges] = [route_socket(), route_socket()];
        let port = getsockname::<NetlinkAddr>(asks.as_raw_fd()).expect("bound");
        for forged in [message(16, 0, b"forged!!"), message(DONE, 0, &[0; 4])] {
            sendto(forges.as_raw_fd(), &forged, &port, MsgFlags::empty()).expect("root may");
        }
        let answer = ask_by(&asks, GET_LINKS, REQUEST_DUMP, &[0; 16]).expect("the kernel answers");
        assert!(!answer.payloads.is_empty() && !answer.payloads.iter().any(|payload| payload == b"forged!!"));
    }

    #[test]
    fn a_dump_of_what_changed_meanwhile_is_known() {
        for (flags, interrupted) in [(0x2, false), (0x2 | INTERRUPTED, true)] {
            let mut answer = Answer::default();
            let dump = [message(16, flags, b"link"), message(DONE, 0x2, &[0; 4])].concat();
            assert!(!read_messages(&dump, &mut answer).expect("well formed"));
            assert_eq!((answer.payloads.len(), answer.interrupted), (1, interrupted));
        }
    }

    #[test]
    fn attributes_are_read_over_their_padding() {
        let bytes = [attribute_bytes(1, b"ct\0"), attribute_bytes(0x8002, b"four")].concat();
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(1, &b"ct\0"[..]), (2, &b"four"[..])]);
        assert_eq!(attribute(&bytes, 1).map(text), Some("ct"));
        assert_eq!(attribute(&bytes, 3), None);
    }

    #[test]
    fn what_is_cut_short_ends_the_attributes() {
        let mut bytes = attribute_bytes(1, b"ct\0");
        bytes[0] = 200;
        assert_eq!(attributes(&bytes).count(), 0);
        assert_eq!(attributes(&[4, 0]).count(), 0);
        // a length of 0 must not go on for ever
        assert_eq!(attributes(&[0; 64]).count(), 0);
    }

    #[test]
    fn an_error_of_the_kernel_ends_a_dump() {
        let mut message = 20u32.to_ne_bytes().to_vec();
        message.extend(ERROR.to_ne_bytes());
        message.extend([0; 10]);
        message.extend((-1i32).to_ne_bytes());
        let error = read_messages(&message, &mut Answer::default()).expect_err("EPERM");
        assert_eq!(error.raw_os_error(), Some(1));
    }
}
