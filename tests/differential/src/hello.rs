// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ClientHellos as they are written and put into records (RFC 8446, 4.1.2 and 5.1). They offer TLS 1.2 alone, because a
//! server's certificate, which tells whom it took the name for, is in the clear there.

mod mutate;
mod read;

pub use mutate::{Change, make};
pub use read::is_allowed;

use crate::vector::{Case, Seed};

pub const SERVER_NAME: u16 = 0;
pub const ALPN: u16 = 16;

/// What goes into a ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub record_version: u16,
    pub version: u16,
    pub random: [u8; 32],
    pub session: Vec<u8>,
    pub ciphers: Vec<u16>,
    pub compression: Vec<u8>,
    /// `None`: there is no block of extensions at all.
    pub extensions: Option<Vec<(u16, Vec<u8>)>>,
}

impl Hello {
    pub fn asking(name: &str) -> Hello {
        let groups = [0x001d, 0x0017, 0x0018].map(u16::to_be_bytes).concat();
        let signatures = [0x0403, 0x0503, 0x0804, 0x0401].map(u16::to_be_bytes).concat();
        Hello {
            record_version: 0x0301,
            version: 0x0303,
            random: std::array::from_fn(|at| at as u8),
            session: vec![],
            // ECDHE-ECDSA with AES-GCM and ChaCha20
            ciphers: vec![0xc02b, 0xc02c, 0xcca9],
            compression: vec![0],
            extensions: Some(vec![
                (SERVER_NAME, server_name(name.as_bytes())),
                (0x000a, vector16(&groups)),
                (0x000b, vec![1, 0]),
                (0x000d, vector16(&signatures)),
                (0x0017, vec![]),
                (0xff01, vec![0]),
            ]),
        }
    }

    /// The extension block, for changes; there is one then.
    pub fn more(&mut self) -> &mut Vec<(u16, Vec<u8>)> {
        self.extensions.get_or_insert_default()
    }

    /// With its head, as the handshake protocol has it.
    pub fn message(&self) -> Vec<u8> {
        let mut body = [&self.version.to_be_bytes()[..], &self.random].concat();
        body.push(self.session.len() as u8);
        body.extend(&self.session);
        body.extend(vector16(&self.ciphers.iter().flat_map(|cipher| cipher.to_be_bytes()).collect::<Vec<_>>()));
        body.push(self.compression.len() as u8);
        body.extend(&self.compression);
        if let Some(extensions) = &self.extensions {
            let one = |(kind, data): &(u16, Vec<u8>)| [&kind.to_be_bytes()[..], &vector16(data)].concat();
            body.extend(vector16(&extensions.iter().flat_map(one).collect::<Vec<_>>()));
        }
        let length = (body.len() as u32).to_be_bytes();
        [&[1], &length[1..], &body].concat()
    }

    /// In one record, or in several where it is too long for one.
    pub fn records(&self) -> Vec<u8> {
        self.message().chunks(16_384).flat_map(|part| record(self.record_version, part)).collect()
    }
}

/// The value of a server_name extension.
pub fn server_name(name: &[u8]) -> Vec<u8> {
    vector16(&[&[0], vector16(name).as_slice()].concat())
}

pub fn vector16(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

pub fn record(version: u16, part: &[u8]) -> Vec<u8> {
    [&[22], &version.to_be_bytes()[..], &vector16(part)].concat()
}

/// The standing table of hellos: the review's, what everybody reads alike, and found ones of `hellos.txt`.
pub fn seeds() -> Vec<Seed> {
    let [plain, secret] = ["plain.example", "secret.example"].map(Hello::asking);
    let nameless = Hello { extensions: plain.extensions.clone().map(|all| all[1..].to_vec()), ..plain.clone() };
    let in_records = |hello: &Hello, size: usize| {
        hello.message().chunks(size).flat_map(|part| record(0x0301, part)).collect::<Vec<u8>>()
    };
    let long = |mut hello: Hello, length: usize| {
        hello.more().push((21, vec![0; length]));
        hello
    };
    let behind_first_byte = |hello: &Hello| {
        let message = hello.message();
        [record(0x0301, &message[..1]), record(0x0301, &[]), record(0x0301, &message[1..])].concat()
    };
    let name = |text: &str| Hello::asking(text).records();
    let all = [
        ("plain-hello", plain.records()),
        ("plain-nameless", nameless.records()),
        ("plain-long", long(plain.clone(), 3000).records()),
        ("plain-records", in_records(&plain, 50)),
        ("secret-hello", secret.records()),
        ("secret-long", long(secret.clone(), 3000).records()),
        ("secret-records", in_records(&secret, 50)),
        ("secret-capitals", name("SECRET.example")),
        ("secret-dot", name("secret.example.")),
        // nginx drops the port
        ("port-in-name", name("secret.example:443")),
        ("empty-record", [record(0x0301, &[]), secret.records()].concat()),
        ("empty-record-second", behind_first_byte(&secret)),
        ("records-of-1", in_records(&secret, 1)),
        ("long-records-of-1", in_records(&long(secret.clone(), 2700), 1)),
        ("very-long", long(secret.clone(), 16_000).records()),
    ];
    let made = all.into_iter().map(|(name, bytes)| Seed { name: name.into(), case: Case { bytes, ..Case::default() } });
    made.chain(crate::vector::read_all(include_str!("hellos.txt"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_hellos_are_allowed_and_no_other_one_is() {
        for seed in seeds() {
            assert_eq!(is_allowed(&seed.case.bytes), seed.name.starts_with("plain"), "{}", seed.name);
        }
    }
}
