// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Client hellos of TLS, made from their parts.

pub fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

pub fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [kind.to_be_bytes().to_vec(), sized(content)].concat()
}

pub fn server_name(name: &str) -> Vec<u8> {
    extension(0, &sized(&[vec![0], sized(name.as_bytes())].concat()))
}

pub fn alpn(protocols: &[&str]) -> Vec<u8> {
    let list: Vec<u8> = protocols.iter().flat_map(|name| [&[name.len() as u8], name.as_bytes()].concat()).collect();
    extension(16, &sized(&list))
}

/// The handshake message.
pub fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([&[32][..], &[9; 32]].concat());
    body.extend(sized(&[0x13, 0x01, 0x13, 0x02]));
    body.extend([1, 0]);
    body.extend(sized(&extensions.concat()));
    [&[1, 0], sized(&body).as_slice()].concat()
}

/// In records of these lengths, the last one with what is left.
pub fn records(message: &[u8], lengths: &[usize]) -> Vec<u8> {
    let (mut rest, mut stream) = (message, Vec::new());
    for length in lengths.iter().copied().chain([usize::MAX]) {
        let (piece, after) = rest.split_at(length.min(rest.len()));
        if !piece.is_empty() || length == 0 {
            stream.extend([&[22, 3, 1], sized(piece).as_slice()].concat());
        }
        rest = after;
    }
    stream
}
