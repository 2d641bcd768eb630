// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose a listening socket is: the process that has it open, by the number of its inode.

use std::collections::{HashMap, HashSet};
use std::fs;

use crate::listening::Listening;
use crate::{ServerStatus, cgroup, origin};

/// Each of these sockets with its server, one for each socket. `managed`: ids of the cgroups whose sockets the hooks see.
pub(crate) fn of<'a>(sockets: &'a [Listening], managed: &HashSet<u64>) -> Vec<(&'a Listening, ServerStatus)> {
    let wanted: HashSet<u32> = sockets.iter().map(|socket| socket.inode).collect();
    let holders = holders(&wanted);
    let server = |socket: &Listening| {
        let pid = holders.get(&socket.inode).copied();
        // a kernel without inet_diag does not tell where the socket was made, which is mostly where its process is
        let of_process = || cgroup::of_process(pid?).and_then(|path| cgroup::id(&path)).ok();
        ServerStatus {
            address: socket.address,
            class: None,
            pid,
            program: pid.and_then(program).unwrap_or_else(|| "a process that cannot be seen from here".to_owned()),
            unit: pid.and_then(origin::unit_of),
            managed: socket.cgroup.or_else(of_process).is_some_and(|id| managed.contains(&id)),
        }
    };
    sockets.iter().map(|socket| (socket, server(socket))).collect()
}

/// The process with the lowest number that has it, which is the one that the others were forked from; the first process, which keeps
/// the sockets that it hands to units, only where there is no other.
fn holders(wanted: &HashSet<u32>) -> HashMap<u32, i32> {
    let mut found = HashMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<i32> =
        processes.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok())).collect();
    pids.sort_unstable_by_key(|pid| (*pid == 1, *pid));
    for pid in pids {
        // a process that ended meanwhile has none
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for inode in open.filter_map(|entry| inode(fs::read_link(entry.path()).ok()?.to_str()?)) {
            if wanted.contains(&inode) {
                found.entry(inode).or_insert(pid);
            }
        }
    }
    found
}

fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn program(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
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
        let servers = of(&sockets, &HashSet::new());
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
        assert!(of(&sockets, &managed)[0].1.managed);
        assert!(!of(&sockets, &HashSet::new())[0].1.managed);
    }
}
