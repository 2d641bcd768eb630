// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose a listening socket is: the process that has it open, by the number of its inode.

use std::collections::HashSet;
use std::fs;

use crate::listening::Listening;
use crate::{ServerStatus, cgroup, origin, patience, sockets};

/// In the place of a program's name.
const ELSEWHERE: &str = "a process that cannot be seen from here";
/// The same where not all could be looked at.
pub(crate) const HIDDEN: &str = "a process that was not found in time";

/// Each of these sockets with its server, one for each socket. `managed`: ids of the cgroups whose sockets the hooks see. `most`: links
/// of descriptors that are read.
pub(crate) fn of<'a>(
    listening: &'a [Listening],
    managed: &HashSet<u64>,
    most: usize,
) -> Vec<(&'a Listening, ServerStatus)> {
    let open = sockets::find(patience::all(), &listening.iter().map(|socket| socket.inode).collect(), most);
    let unseen = if open.is_cut { HIDDEN } else { ELSEWHERE };
    let server = |socket: &Listening| {
        let pid = open.by.get(&socket.inode).map(|(pid, _)| *pid);
        // a kernel without inet_diag does not tell where the socket was made, which is mostly where its process is
        let of_process = || cgroup::of_process(pid?).and_then(|path| cgroup::id(&path)).ok();
        ServerStatus {
            address: socket.address,
            class: None,
            pid,
            program: pid.and_then(program).unwrap_or_else(|| unseen.to_owned()),
            unit: pid.and_then(origin::unit_of),
            managed: socket.cgroup.or_else(of_process).is_some_and(|id| managed.contains(&id)),
        }
    };
    listening.iter().map(|socket| (socket, server(socket))).collect()
}

/// Its name, which may be any bytes.
fn program(pid: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listening;
    use std::net::TcpListener;

    #[test]
    fn a_listening_socket_is_found_with_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("bound");
        let sockets = listening::find().expect("the kernel answers");
        let servers = of(&sockets, &HashSet::new(), sockets::MOST);
        let (_, own) = servers.iter().find(|(socket, _)| socket.address == address).expect("it is there");
        assert_eq!(own.pid, Some(std::process::id().cast_signed()));
        assert!(!own.managed && !own.program.is_empty());
    }

    #[test]
    fn where_the_kernel_does_not_tell_a_sockets_cgroup_it_is_that_of_the_process() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("bound");
        let mut sockets = listening::find().expect("the kernel answers");
        sockets.retain(|socket| socket.address == address);
        sockets[0].cgroup = None;
        let own = cgroup::of_process(std::process::id().cast_signed()).expect("a cgroup");
        let managed = HashSet::from([cgroup::id(&own).expect("its folder")]);
        assert!(of(&sockets, &managed, sockets::MOST)[0].1.managed);
        assert!(!of(&sockets, &HashSet::new(), sockets::MOST)[0].1.managed);
    }

    #[test]
    fn whose_socket_is_not_found_in_time_is_told_from_whose_is_nowhere() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("bound");
        let mut sockets = listening::find().expect("the kernel answers");
        sockets.retain(|socket| socket.address == address);
        let server = |sockets: &[Listening], most: usize| of(sockets, &HashSet::new(), most).remove(0).1;
        let hidden = server(&sockets, 0);
        assert_eq!((hidden.pid, hidden.program.as_str()), (None, HIDDEN));
        // no process has a socket of this number
        sockets[0].inode = u32::MAX;
        let nowhere = server(&sockets, usize::MAX);
        assert_eq!((nowhere.pid, nowhere.program.as_str()), (None, ELSEWHERE));
    }
}
