// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may read at the agent's socket: root and the members of one group, as the kernel says of the process that connected.
//!
//! The socket's mode says the same, so the kernel refuses others at connect; a connected socket that was handed on to another
//! process, or a mode that somebody changed, leaves the question to this file.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Gid;

/// Root, and a group if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// Its members read too.
    pub group: Option<Gid>,
}

impl Readers {
    /// Lets only these connect to a socket.
    pub(crate) fn admit(self, socket: &Path) -> io::Result<()> {
        let mode = match self.group {
            Some(group) => {
                chown(socket, None, Some(group.as_raw()))?;
                0o660
            }
            None => 0o600,
        };
        std::fs::set_permissions(socket, Permissions::from_mode(mode))
    }

    /// Whether who connected is one of them.
    pub(crate) fn has(self, peer: &impl AsFd) -> bool {
        let Ok(credentials) = getsockopt(peer, sockopt::PeerCredentials) else { return false };
        let is_member = |group: Gid| credentials.gid() == group.as_raw() || groups(peer).contains(&group.as_raw());
        credentials.uid() == 0 || self.group.is_some_and(is_member)
    }
}

/// The user at the other end of a local socket.
pub(crate) fn user(peer: &impl AsFd) -> Option<u32> {
    getsockopt(peer, sockopt::PeerCredentials).ok().map(|credentials| credentials.uid()).filter(|uid| *uid != u32::MAX)
}

/// The supplementary groups that a process had when it connected (SO_PEERGROUPS, unix(7)). No crate knows this option.
fn groups(peer: &impl AsFd) -> Vec<libc::gid_t> {
    let mut found = vec![0; 64];
    loop {
        let mut length = (found.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `found`, which has as many and whose integers take any value.
        let failed = unsafe {
            libc::getsockopt(
                peer.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                found.as_mut_ptr().cast(),
                &mut length,
            )
        } != 0;
        let has = length as usize / size_of::<libc::gid_t>();
        // too small: the length says how many there are
        if failed && (Errno::last() != Errno::ERANGE || has <= found.len()) {
            return Vec::new();
        }
        let whole = !failed;
        found.resize(has, 0);
        if whole {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn root_reads_and_a_stranger_does_not() {
        let (peer, _other) = UnixStream::pair().expect("two sockets");
        let is_root = nix::unistd::geteuid().is_root();
        assert_eq!(Readers { group: None }.has(&peer), is_root);
        let own = nix::unistd::getegid();
        assert!(Readers { group: Some(own) }.has(&peer));
    }

    #[test]
    fn the_kernel_tells_of_groups() {
        let (peer, _other) = UnixStream::pair().expect("two sockets");
        let own: Vec<_> = nix::unistd::getgroups().expect("own groups").iter().map(|group| group.as_raw()).collect();
        assert_eq!(groups(&peer), own);
    }

    #[test]
    fn the_mode_of_the_socket_says_who() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let mode = |readers: Readers| {
            readers.admit(&path).expect("own file");
            std::fs::metadata(&path).expect("there").permissions().mode() & 0o777
        };
        assert_eq!(mode(Readers { group: None }), 0o600);
        assert_eq!(mode(Readers { group: Some(nix::unistd::getegid()) }), 0o660);
    }
}
