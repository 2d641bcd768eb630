// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The work on one frame: what a player does to decode it, and what a display server does to show it. It is the same for each frame, and
//! so is what it costs.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::error::{Context, Result};

const WIDTH: usize = 160;
const HEIGHT: usize = 128;
const PIXELS: usize = WIDTH * HEIGHT;
/// One plane of brightness and two of colour, each of a quarter of its size (4:2:0).
pub const FRAME: usize = PIXELS * 3 / 2;
const SIDE: usize = 8;
const BLOCK: usize = SIDE * SIDE;
const BLOCKS: usize = FRAME / BLOCK;
/// Each cosine in so many bits.
const BITS: u32 = 13;

/// What a frame costs each of both, in steps of its work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Blocks that are transformed. A frame is made of fewer; then some are transformed again, as those of a larger one would.
    pub blocks: usize,
    /// Pixels that are converted, likewise.
    pub pixels: usize,
}

/// Decodes frames: the inverse cosine transform of each block of 8 x 8, as MPEG-1 has it.
#[derive(Debug)]
pub struct Decoder {
    cosines: [i32; BLOCK],
    seed: u32,
    pub frame: Vec<u8>,
}

impl Decoder {
    pub fn new() -> Decoder {
        let cosine = |at: usize| {
            let (frequency, place) = ((at / SIDE) as f64, (at % SIDE) as f64);
            let scale = if at < SIDE { 0.5f64.sqrt() } else { 1.0 } / 2.0;
            let angle = (2.0 * place + 1.0) * frequency * std::f64::consts::PI / 16.0;
            (scale * angle.cos() * f64::from(1 << BITS)).round() as i32
        };
        Decoder { cosines: std::array::from_fn(cosine), seed: 1, frame: vec![0; FRAME] }
    }

    /// The next frame.
    pub fn decode(&mut self, blocks: usize) {
        for number in 0..blocks {
            let block = self.transform();
            let at = number % BLOCKS * BLOCK;
            self.frame[at..at + BLOCK].copy_from_slice(&block);
        }
    }

    fn transform(&mut self) -> [u8; BLOCK] {
        let mut coefficients = [0i32; BLOCK];
        for (at, coefficient) in coefficients.iter_mut().enumerate() {
            // a generator in place of a bit stream; high frequencies are small
            self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *coefficient = (self.seed >> 24) as i32 / (at / SIDE + at % SIDE + 1) as i32;
        }
        let rows = self.transform_rows(&coefficients);
        self.transform_rows(&rows).map(|value| (value + 128).clamp(0, 255) as u8)
    }

    /// The transform of each row, stored as a column: twice of it is that of the block.
    fn transform_rows(&self, from: &[i32; BLOCK]) -> [i32; BLOCK] {
        let mut to = [0; BLOCK];
        for row in 0..SIDE {
            for place in 0..SIDE {
                let terms = (0..SIDE).map(|at| from[row * SIDE + at] * self.cosines[at * SIDE + place]);
                to[place * SIDE + row] = terms.sum::<i32>() >> BITS;
            }
        }
        to
    }
}

/// A checksum by which both sides know that the frame came whole.
pub fn sum(frame: &[u8]) -> u64 {
    let words = frame.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    words.fold(0, |sum: u64, word| sum.wrapping_mul(31).wrapping_add(word))
}

/// Shows frames: brightness and colours become red, green and blue.
#[derive(Debug)]
pub struct Screen {
    pixels: Vec<u32>,
}

impl Screen {
    pub fn new() -> Screen {
        Screen { pixels: vec![0; PIXELS] }
    }

    pub fn show(&mut self, frame: &[u8], pixels: usize) {
        let (brightness, colours) = frame.split_at(PIXELS);
        let (blue, red) = colours.split_at(PIXELS / 4);
        for number in 0..pixels {
            let at = number % PIXELS;
            let quarter = at / WIDTH / 2 * (WIDTH / 2) + at % WIDTH / 2;
            let (y, u, v) = (i32::from(brightness[at]), i32::from(blue[quarter]) - 128, i32::from(red[quarter]) - 128);
            let part = |value: i32| value.clamp(0, 255) as u32;
            let (r, g, b) = (part(y + 359 * v / 256), part(y - (88 * u + 183 * v) / 256), part(y + 454 * u / 256));
            self.pixels[at] = r << 16 | g << 8 | b;
        }
        std::hint::black_box(&self.pixels);
    }
}

/// What each step of the work costs by the thread's own clock, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    block: f64,
    pixel: f64,
    /// Of a frame, which both have.
    sum: f64,
}

impl Steps {
    /// Tries each so many times.
    pub fn measure(trials: u32) -> Result<Steps> {
        let mut decoder = Decoder::new();
        let block = cost(trials, || decoder.decode(BLOCKS))? / BLOCKS as f64;
        let (mut screen, frame) = (Screen::new(), decoder.frame);
        let pixel = cost(trials, || screen.show(&frame, PIXELS))? / PIXELS as f64;
        let sum = cost(trials, || {
            std::hint::black_box(sum(&frame));
        })?;
        Ok(Steps { block, pixel, sum })
    }

    /// So much work that both have these times for one frame.
    pub fn within(self, decode: Duration, show: Duration) -> Work {
        let steps = |time: Duration, one: f64| (((time.as_secs_f64() - self.sum) / one) as usize).max(1);
        Work { blocks: steps(decode, self.block), pixels: steps(show, self.pixel) }
    }
}

/// The least of so many trials, in seconds.
fn cost(trials: u32, mut work: impl FnMut()) -> Result<f64> {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).context("the thread's clock");
    let mut least = Duration::MAX;
    for _ in 0..trials {
        let begin = now()?;
        work();
        least = least.min(now()? - begin);
    }
    Ok(least.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_its_first_coefficient_alone_is_even() {
        let decoder = Decoder::new();
        let mut coefficients = [0; BLOCK];
        coefficients[0] = 80;
        let block = decoder.transform_rows(&decoder.transform_rows(&coefficients));
        assert!(block.iter().all(|value| (9..=10).contains(value)), "{block:?}");
    }

    #[test]
    fn grey_is_shown_as_grey_and_colour_is_not() {
        let mut screen = Screen::new();
        let mut frame = vec![128; FRAME];
        screen.show(&frame, PIXELS);
        assert!(screen.pixels.iter().all(|pixel| *pixel == 0x0080_8080));
        frame[PIXELS + PIXELS / 4..].fill(255);
        screen.show(&frame, 1);
        assert_eq!((screen.pixels[0] >> 16, screen.pixels[1]), (255, 0x0080_8080));
    }

    #[test]
    fn frames_differ_and_so_do_their_sums() {
        let mut decoder = Decoder::new();
        decoder.decode(BLOCKS);
        let first = decoder.frame.clone();
        decoder.decode(BLOCKS);
        assert_ne!(sum(&first), sum(&decoder.frame));
    }
}
