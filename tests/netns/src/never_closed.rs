// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file of FUSE whose server never answers a close: who closes it waits, also after kill -9, until this is dropped.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

// linux/fuse.h
const FORGET: u32 = 2;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// Room for a request, of which the kernel wants more than for the largest.
const REQUEST: usize = 1 << 16;

/// Mounted over an ordinary file. It has to be dropped before those that have it open are waited for.
#[derive(Debug)]
pub struct NeverClosed {
    place: tempfile::NamedTempFile,
}

impl NeverClosed {
    /// The machine has FUSE.
    #[allow(clippy::new_without_default, reason = "it mounts")]
    pub fn new() -> Self {
        let place = tempfile::NamedTempFile::new().expect("a file");
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("FUSE");
        let options = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("never-closed"), place.path(), Some("fuse"), MsFlags::empty(), Some(options.as_str()))
            .expect("mounted");
        std::thread::spawn(move || serve(device));
        Self { place }
    }

    /// Where it can be opened.
    pub fn path(&self) -> &Path {
        self.place.path()
    }
}

impl Drop for NeverClosed {
    fn drop(&mut self) {
        // by force: whoever waits is told that it has ended, and so is the server
        let place: PathBuf = self.place.path().to_owned();
        if let Err(error) = umount2(&place, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", place.display());
        }
    }
}

/// Answers requests until the file system ends.
fn serve(mut device: File) {
    let mut request = vec![0; REQUEST];
    while let Ok(length) = device.read(&mut request) {
        // length, operation, number, and what nobody needs here
        let [operation, unique] = [&request[4..8], &request[8..16]];
        let operation = u32::from_ne_bytes(operation.try_into().expect("4 bytes"));
        let answer = match operation {
            FLUSH | FORGET | INTERRUPT => continue,
            INIT => (0, version()),
            RELEASE => (0, Vec::new()),
            // then the kernel does without
            _ => (-libc::ENOSYS, Vec::new()),
        };
        assert!(length >= 40, "a whole head");
        let (error, body): (i32, Vec<u8>) = answer;
        let whole = (16 + body.len()) as u32;
        let bytes = [&whole.to_ne_bytes()[..], &error.to_ne_bytes(), unique, &body].concat();
        // nobody hears it once the file system has ended
        let _ = device.write_all(&bytes);
    }
}

/// struct fuse_init_out: version 7.31, no features, and writes of a page.
fn version() -> Vec<u8> {
    let mut words = [0u32; 16];
    (words[0], words[1], words[5]) = (7, 31, 4096);
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
