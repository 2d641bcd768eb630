// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The player, a process of one thread: decodes a frame, sends its pixels to the display server, and waits until that has shown it.

use std::io::{BufRead, Read, Write, stdin};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::clip::{Decoder, sum};
use crate::error::{Context, Error, Kind, Result};

/// What a player saw while it played.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Played {
    /// When each frame had been shown, since the begin.
    pub shown_us: Vec<u64>,
}

/// The child's main: the socket and the blocks of a frame. Each line of its input has it play, for so many milliseconds and with a frame
/// in so many microseconds; 0: as fast as it can.
pub fn player_main(arguments: &[String]) -> Result<()> {
    let usage = || Error::new(Kind::Usage, "a player takes a socket and the blocks of a frame");
    let [socket, blocks] = arguments else { return Err(usage()) };
    let blocks: usize = blocks.parse().map_err(|_| usage())?;
    let mut stream = UnixStream::connect(socket).context("connect to the display server")?;
    let mut decoder = Decoder::new();
    println!("{}", std::process::id());
    for line in stdin().lock().lines() {
        let line = line.context("hear what to play")?;
        let mut words = line.split_whitespace().map(str::parse);
        let (Some(Ok(length_ms)), Some(Ok(period_us))) = (words.next(), words.next()) else { return Err(usage()) };
        let (length, period) = (Duration::from_millis(length_ms), Duration::from_micros(period_us));
        let played = play(&mut decoder, &mut stream, blocks, length, period)?;
        let text = serde_json::to_string(&played).map_err(|error| Error::failed(error.to_string()))?;
        println!("{text}");
    }
    Ok(())
}

fn play(
    decoder: &mut Decoder,
    stream: &mut UnixStream,
    blocks: usize,
    length: Duration,
    period: Duration,
) -> Result<Played> {
    let begin = Instant::now();
    let mut played = Played::default();
    for number in 0u32.. {
        let due = period * number;
        if begin.elapsed().max(due) >= length {
            break;
        }
        // a late frame is not dropped: it is decoded at once
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        decoder.decode(blocks);
        stream.write_all(&decoder.frame).context("send a frame")?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).context("wait for the display server")?;
        if u64::from_ne_bytes(answer) != sum(&decoder.frame) {
            return Err(Error::failed("the display server has shown another frame than was sent"));
        }
        played.shown_us.push(begin.elapsed().as_micros() as u64);
    }
    Ok(played)
}
