// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first bytes of a connection, as the client sends them upon a SYN-ACK. Pure.

use crate::flood::frame::sum;

const IP: usize = 14;
const TCP: usize = IP + 20;
/// Of a segment with timestamps.
const HEADER: usize = 32;

/// The segment that ends the handshake and bears `bytes`; nothing if the frame is no SYN-ACK with timestamps.
pub fn first_bytes(synack: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    if synack.len() < TCP + 20 || synack[TCP + 13] & 0x3f != 0x12 {
        return None;
    }
    let stamp = timestamp(&synack[TCP + 20..TCP + usize::from(synack[TCP + 12] >> 4) * 4])?;
    let length = TCP + HEADER + bytes.len();
    let mut frame = vec![0; TCP + HEADER];
    frame[..6].copy_from_slice(&synack[6..12]);
    frame[6..12].copy_from_slice(&synack[..6]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[IP] = 0x45;
    frame[IP + 2..IP + 4].copy_from_slice(&((length - IP) as u16).to_be_bytes());
    frame[IP + 8] = 64;
    frame[IP + 9] = 6;
    frame[IP + 12..IP + 16].copy_from_slice(&synack[IP + 16..IP + 20]);
    frame[IP + 16..IP + 20].copy_from_slice(&synack[IP + 12..IP + 16]);
    frame[TCP..TCP + 2].copy_from_slice(&synack[TCP + 2..TCP + 4]);
    frame[TCP + 2..TCP + 4].copy_from_slice(&synack[TCP..TCP + 2]);
    // What the server expects next, and the byte after its SYN.
    frame[TCP + 4..TCP + 8].copy_from_slice(&synack[TCP + 8..TCP + 12]);
    let sequence = u32::from_be_bytes([synack[TCP + 4], synack[TCP + 5], synack[TCP + 6], synack[TCP + 7]]);
    frame[TCP + 8..TCP + 12].copy_from_slice(&sequence.wrapping_add(1).to_be_bytes());
    frame[TCP + 12] = (HEADER / 4 * 16) as u8;
    frame[TCP + 13] = 0x18;
    frame[TCP + 14..TCP + 16].copy_from_slice(&502u16.to_be_bytes());
    frame[TCP + 20..TCP + 28].copy_from_slice(&[1, 1, 8, 10, 0, 0, 0, 2]);
    frame[TCP + 28..TCP + 32].copy_from_slice(&stamp);
    frame.extend_from_slice(bytes);
    let checksum = !sum(&frame[IP..TCP], 0);
    frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
    let pseudo = sum(&frame[IP + 12..TCP], 6 + (length - TCP) as u32);
    let checksum = !sum(&frame[TCP..], pseudo.into());
    frame[TCP + 16..TCP + 18].copy_from_slice(&checksum.to_be_bytes());
    Some(frame)
}

/// The sender's value among TCP options.
fn timestamp(mut options: &[u8]) -> Option<[u8; 4]> {
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [8, 10, a, b, c, d, ..] => return Some([*a, *b, *c, *d]),
            [0, ..] | [] | [_] => return None,
            [_, length, ..] => options = options.get(usize::from(*length).max(2)..)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timestamp_is_found_behind_other_options() {
        assert_eq!(timestamp(&[2, 4, 5, 0xb4, 1, 1, 8, 10, 9, 8, 7, 6, 0, 0, 0, 1]), Some([9, 8, 7, 6]));
        assert_eq!(timestamp(&[2, 4, 5, 0xb4]), None);
        assert_eq!(timestamp(&[2, 200, 5]), None);
    }

    #[test]
    fn the_answer_to_a_synack_goes_back_and_acknowledges_it() {
        let mut synack = vec![0; TCP + 20];
        synack.extend([1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 1]);
        synack[TCP] = 1;
        synack[TCP + 4..TCP + 8].copy_from_slice(&[0, 0, 1, 0xff]);
        synack[TCP + 8..TCP + 12].copy_from_slice(&[0, 0, 0, 7]);
        synack[TCP + 12] = 8 << 4;
        synack[TCP + 13] = 0x12;
        let frame = first_bytes(&synack, b"GET").expect("an answer");
        assert_eq!(frame[TCP + 2], 1, "its port");
        assert_eq!(frame[TCP + 4..TCP + 12], [0, 0, 0, 7, 0, 0, 2, 0]);
        assert_eq!(sum(&frame[TCP..], sum(&frame[IP + 12..TCP], 6 + 35).into()), 0xffff);
        synack[TCP + 13] = 0x04;
        assert!(first_bytes(&synack, b"GET").is_none(), "a reset is no SYN-ACK");
    }
}
