// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel side sees in the first bytes of a connection: `bpf/front/header.bpf.h` and `clienthello.bpf.h`, the
//! very C, called from user space.

use std::ffi::c_int;
use std::ptr::NonNull;

/// Bytes that are looked at, at most.
pub const LONGEST: usize = 16_384;
/// Names of headers and cookies that can be asked for.
pub const NAMES: usize = 8;

#[repr(C)]
struct RawParser {
    _private: [u8; 0],
}

#[repr(C)]
struct RawField {
    bytes: *const u8,
    length: u32,
    known: u32,
}

/// `struct fief_condition`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Condition {
    pub field: u8,
    pub comparison: u8,
    pub name: u8,
    pub pad: u8,
    pub length: u16,
    pub least: u16,
}

/// `struct fief_shape`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    pub conditions: u32,
    pub first_rule: u32,
    pub condition: [Condition; 4],
}

/// How far what is kept was looked through: `struct fief_scan`. The default is that of a head of which there is nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    pub at: u32,
    phase: u32,
    filled: u32,
    wanted: u32,
}

/// Where in a body a request has come to: `struct fief_body`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    pub left: u64,
    phase: u16,
    digits: u16,
    pad: u32,
}

/// What there is to say of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    Within,
    /// What follows is the next request.
    Ended,
    Odd,
}

unsafe extern "C" {
    fn parser_new() -> Option<NonNull<RawParser>>;
    fn parser_free(parser: NonNull<RawParser>);
    fn parser_read(
        parser: NonNull<RawParser>,
        bytes: *const u8,
        length: u32,
        rest: u8,
        key: *const u64,
        names: *const u64,
    ) -> c_int;
    fn parser_field(parser: NonNull<RawParser>, field: u32) -> RawField;
    fn parser_unresolve(parser: NonNull<RawParser>) -> c_int;
    fn parser_inside(
        parser: NonNull<RawParser>,
        bytes: *const u8,
        length: u32,
        rest: u8,
        body: u32,
        is_last: bool,
    ) -> c_int;
    fn parser_head(parser: NonNull<RawParser>) -> u32;
    fn parser_body(parser: NonNull<RawParser>) -> u64;
    fn parser_tracked(parser: NonNull<RawParser>) -> u32;
    fn parser_chunked(parser: NonNull<RawParser>) -> u32;
    fn parser_upgrade(parser: NonNull<RawParser>) -> u32;
    fn parser_last(parser: NonNull<RawParser>) -> u32;
    fn parser_unread(parser: NonNull<RawParser>) -> u32;
    fn parser_ask(parser: NonNull<RawParser>, bytes: *const u8, length: u32, rest: u8, kept: u32, body: u32) -> u64;
    fn parser_scan_begin(
        parser: NonNull<RawParser>,
        bytes: *const u8,
        length: u32,
        rest: u8,
        kept: u32,
        body: u32,
        scan: *mut Scan,
    );
    fn parser_scan_on(
        parser: NonNull<RawParser>,
        bytes: *const u8,
        length: u32,
        rest: u8,
        kept: u32,
        scan: *mut Scan,
    ) -> c_int;
    fn parser_body_begin(body: *mut Follower, is_chunked: bool, length: u64);
    fn parser_body_follow(
        parser: NonNull<RawParser>,
        bytes: *const u8,
        length: u32,
        rest: u8,
        body: *mut Follower,
    ) -> u32;
    fn parser_shape(parser: NonNull<RawParser>, shape: *const Shape, alpn: u32, hash: *mut u64) -> c_int;
}

/// What the bytes were found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    NeedMore,
    Complete,
    /// It cannot be read to its end.
    Unread(Unread),
}

/// `enum fief_unread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    Malformed,
    TooLong,
    Upgrade,
    Http2,
    Proxy,
    NoRoom,
    Other,
}

impl Unread {
    fn of(number: u32) -> Self {
        use Unread::*;
        [Malformed, TooLong, Upgrade, Http2, Proxy, NoRoom, Other][number as usize]
    }
}

/// What a body is to a server that takes it for the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    NeedMore,
    /// No request: the server ends the connection.
    Body,
    /// It may be one, and is to be ruled.
    Request,
}

/// What the door keeps the begin of, until it is whole; the numbers are `enum parser_kept`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Head,
    /// A head from a balancer, which may send a PROXY head before it.
    Balanced,
    /// A record of TLS behind a hello.
    Record,
    /// The first line of a body in chunks.
    Chunk,
    /// The line behind the data of a chunk.
    NextChunk,
    Trailer,
    /// A body of so many bytes that may be a request.
    Body(u32),
}

impl Kept {
    fn number(self) -> u32 {
        match self {
            Kept::Head => 0,
            Kept::Balanced => 1,
            Kept::Record => 2,
            Kept::Chunk => 3,
            Kept::NextChunk => 4,
            Kept::Trailer => 5,
            Kept::Body(_) => 6,
        }
    }

    fn body(self) -> u32 {
        if let Kept::Body(length) = self { length } else { 0 }
    }
}

/// A part of a request; the numbers are `enum request_field`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Method,
    Path,
    Host,
    ServerName,
    Alpn(u32),
    /// The header or cookie whose name's hash stands at this place.
    Value(u32),
}

/// One CPU's parser, with what it read last.
#[derive(Debug)]
pub struct Parser {
    raw: NonNull<RawParser>,
    key: [u64; 2],
    names: [u64; NAMES],
}

impl Parser {
    /// A parser with a key for its hashes, and the hashes of the names that are looked for.
    pub fn new(key: [u64; 2], names: &[u64]) -> Self {
        let mut room = [0; NAMES];
        room[..names.len()].copy_from_slice(names);
        // SAFETY: takes nothing.
        let raw = unsafe { parser_new() }.expect("memory for a parser");
        Self { raw, key, names: room }
    }

    /// Reads the first bytes of a stream; behind them stands `rest`, which must not matter.
    pub fn read(&mut self, bytes: &[u8], rest: u8) -> State {
        let length = bytes.len().min(LONGEST) as u32;
        // SAFETY: the parser lives as long as self; `length` bytes, two keys and NAMES names are there.
        let state =
            unsafe { parser_read(self.raw, bytes.as_ptr(), length, rest, self.key.as_ptr(), self.names.as_ptr()) };
        match state {
            0 => State::NeedMore,
            1 => State::Complete,
            // SAFETY: the parser lives as long as self.
            2 => State::Unread(Unread::of(unsafe { parser_unread(self.raw) })),
            other => unreachable!("no such state: {other}"),
        }
    }

    /// A part's value as it is compared.
    pub fn get(&self, part: Part) -> Option<Vec<u8>> {
        let number = match part {
            Part::Method => 0,
            Part::Path => 1,
            Part::Host => 2,
            Part::ServerName => 3,
            Part::Alpn(at) => 4 + at,
            Part::Value(at) => 12 + at,
        };
        // SAFETY: the parser lives as long as self.
        let field = unsafe { parser_field(self.raw, number) };
        if field.known == 0 {
            return None;
        }
        // SAFETY: a known field's bytes stand in the parser's own buffers, unchanged until the next read.
        let bytes = unsafe { std::slice::from_raw_parts(field.bytes, field.length as usize) };
        let folds = field.known & 2 != 0;
        Some(if folds { bytes.to_ascii_lowercase() } else { bytes.to_vec() })
    }

    /// The path as a server has it that resolves nothing, if it is another one; it takes the other one's place.
    pub fn unresolved(&mut self) -> Option<Vec<u8>> {
        // SAFETY: the parser lives as long as self.
        let is_other = unsafe { parser_unresolve(self.raw) != 0 };
        if is_other { self.get(Part::Path) } else { None }
    }

    /// What a body of `body` bytes, or a stream's last bytes, that begin so are to a server that does not read bodies.
    pub fn inside(&mut self, bytes: &[u8], rest: u8, body: usize, is_last: bool) -> Inside {
        let length = bytes.len().min(LONGEST) as u32;
        // SAFETY: the parser lives as long as self; `length` bytes are there.
        match unsafe { parser_inside(self.raw, bytes.as_ptr(), length, rest, body as u32, is_last) } {
            0 => Inside::NeedMore,
            1 => Inside::Body,
            3 => Inside::Request,
            other => unreachable!("no such state: {other}"),
        }
    }

    /// Bytes up to the body.
    pub fn head(&self) -> usize {
        // SAFETY: the parser lives as long as self.
        unsafe { parser_head(self.raw) as usize }
    }

    /// Length of the body, if it is known where the next request begins.
    pub fn body(&self) -> Option<u64> {
        // SAFETY: the parser lives as long as self.
        unsafe { (parser_tracked(self.raw) != 0).then(|| parser_body(self.raw)) }
    }

    /// The body is chunked.
    pub fn is_chunked(&self) -> bool {
        // SAFETY: the parser lives as long as self.
        unsafe { parser_chunked(self.raw) != 0 }
    }

    /// It asks for another protocol.
    pub fn is_upgrade(&self) -> bool {
        // SAFETY: the parser lives as long as self.
        unsafe { parser_upgrade(self.raw) != 0 }
    }

    /// Every server ends the connection behind it.
    pub fn is_last(&self) -> bool {
        // SAFETY: the parser lives as long as self.
        unsafe { parser_last(self.raw) != 0 }
    }

    /// What the door says of these first bytes, as a number; `None`: it wants more.
    pub fn ask(&mut self, kept: Kept, bytes: &[u8], rest: u8) -> Option<u64> {
        let length = bytes.len().min(LONGEST) as u32;
        // SAFETY: the parser lives as long as self; `length` bytes are there.
        let said = unsafe { parser_ask(self.raw, bytes.as_ptr(), length, rest, kept.number(), kept.body()) };
        (said != 0).then_some(said)
    }

    /// How the door keeps these bytes, of which it has just wanted more.
    pub fn keep(&mut self, kept: Kept, bytes: &[u8], rest: u8) -> Scan {
        let (length, mut scan) = (bytes.len().min(LONGEST) as u32, Scan::default());
        // SAFETY: the parser lives as long as self; `length` bytes and `scan` are there.
        unsafe {
            parser_scan_begin(self.raw, bytes.as_ptr(), length, rest, kept.number(), kept.body(), &raw mut scan);
        }
        scan
    }

    /// Whether the door asks again about these bytes, of which those that are kept were scanned so far.
    pub fn is_asked(&mut self, kept: Kept, bytes: &[u8], rest: u8, scan: &mut Scan) -> bool {
        let length = bytes.len().min(LONGEST) as u32;
        // SAFETY: the parser lives as long as self; `length` bytes and `scan` are there.
        unsafe { parser_scan_on(self.raw, bytes.as_ptr(), length, rest, kept.number(), scan) != 0 }
    }

    /// Follows a body; how many of the bytes are of it.
    pub fn follow(&mut self, bytes: &[u8], rest: u8, body: &mut Follower) -> usize {
        let length = bytes.len().min(LONGEST) as u32;
        // SAFETY: the parser lives as long as self; `length` bytes and `body` are there.
        unsafe { parser_body_follow(self.raw, bytes.as_ptr(), length, rest, body) as usize }
    }

    /// Hash of what a shape looks at; `None`: the request does not have it.
    pub fn shape(&mut self, shape: &Shape, alpn: u32) -> Option<u64> {
        let mut hash = 0;
        // SAFETY: the parser lives as long as self; `shape` and `hash` are there.
        let has = unsafe { parser_shape(self.raw, shape, alpn, &raw mut hash) };
        (has != 0).then_some(hash)
    }
}

impl Follower {
    /// At the begin of a chunked body, or of one of known length.
    pub fn new(length: Option<u64>) -> Self {
        let mut body = Self { left: 0, phase: 0, digits: 0, pad: 0 };
        // SAFETY: `body` is there.
        unsafe { parser_body_begin(&mut body, length.is_none(), length.unwrap_or(0)) };
        body
    }

    pub fn said(&self) -> Followed {
        match self.phase {
            13 => Followed::Ended,
            14 => Followed::Odd,
            _ => Followed::Within,
        }
    }
}

impl Drop for Parser {
    fn drop(&mut self) {
        // SAFETY: made by parser_new, freed once.
        unsafe { parser_free(self.raw) }
    }
}
