// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a flood leaves in a kernel that answers it: a socket for each handshake under way.

use crate::error::{Context, Result};
use fief_testkit::{NetNs, run, wait_until};
use std::time::Duration;

/// Those in the state SYN_RECV, which the kernel lists as 03.
pub fn request_sockets(server: &NetNs) -> Result<usize> {
    let text = server.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp"))?.context("list the sockets")?;
    Ok(count_request_sockets(&text))
}

/// Fields of a line: number local remote state ...
fn count_request_sockets(text: &str) -> usize {
    text.lines().filter(|line| line.split_whitespace().nth(3) == Some("03")).count()
}

/// Forgets them: the kernel would keep them, and answer again and again, for a minute, while somebody else is measured.
/// Where the kernel cannot, they are left.
pub fn forget_request_sockets(server: &NetNs) {
    let _ = wait_until(Duration::from_secs(2), || {
        let _ = run(server.command("ss").args(["--kill", "--tcp", "--numeric", "state", "syn-recv"]));
        request_sockets(server).is_ok_and(|count| count == 0)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handshakes_under_way_are_request_sockets() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                    0: 0100007F:0050 00000000:0000 0A 00000000:00000000\n   \
                    1: 01004D0A:0050 0158580A:0400 03 00000000:00000000\n";
        assert_eq!(count_request_sockets(text), 1);
    }
}
