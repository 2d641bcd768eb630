// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Usage, kept: a folder with a file for each day, of which any part up to its first damage can be read.
//!
//! ```text
//! 2026-11-25.fief      chunk chunk chunk ...            one for each reading
//!                      whole  change change ... whole   a whole one begins each file and every ten minutes
//!
//!  0      4       8         12       16           24     28
//!  +------+-------+---------+--------+------------+------+--- - - ---+
//!  | FiEf | crc32 | crc32   | length | time in ms | kind |  payload  |   little-endian
//!  |      | of the| of the  |        |            |      |           |
//!  |      | rest  | payload |        |            |      |           |
//!  +------+-------+---------+--------+------------+------+--- - - ---+
//! ```
//!
//! Problem: a record that is read after a crash, on a full disk, by another process while it grows. How: a chunk is added by one
//! write and never changed; it is there with its checksum or it is not. The payloads from one whole reading up to the next are one
//! zstd stream, flushed after each, so that a change of three kilobytes is compressed by what came before ([`change`] says what is
//! in it). Limits: what was in the page cache when the machine lost power, some seconds, is lost; a damaged chunk hides those up to
//! the next whole reading.

mod change;
mod chunk;
mod folder;
mod keep;
mod read;
mod seek;
#[cfg(test)]
mod tests;
mod write;

pub use change::is_another;
pub use folder::Folder;
pub use keep::Keeper;
pub use read::{Day, Player, Reading};
pub use write::{Kept, Recorder, RecorderOptions};
