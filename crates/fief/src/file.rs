// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The label of a file: kernel work on behalf of the file is a container's as long as the label is open.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::abi;
use crate::error::{Error, Result};
use crate::option;

/// The label of a file. Dropping it ends it; it is a descriptor, so it ends with the process too, however that goes, and
/// lives on where it was passed to.
#[derive(Debug)]
pub struct FileLabel {
    fd: OwnedFd,
}

/// Labels a file with the calling thread's container; see [`Container::assign_file`](crate::Container::assign_file).
pub fn assign_file(file: impl AsFd) -> Result<FileLabel> {
    let fail = |e| Error::new("cannot label a file", e);
    let fd = option::fresh_socket().map_err(fail)?;
    // a descriptor is never negative
    let number = file.as_fd().as_raw_fd().cast_unsigned();
    option::set(fd.as_fd(), abi::FIEF_ASSIGN_FILE, &number).map_err(fail)?;
    Ok(FileLabel { fd })
}

impl AsFd for FileLabel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<FileLabel> for OwnedFd {
    fn from(label: FileLabel) -> Self {
        label.fd
    }
}
