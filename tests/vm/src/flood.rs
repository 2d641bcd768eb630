// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The check of receive work above a limit: it is discarded, and that of a container without a limit is not.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{fief, number, objects};
use crate::report::{Found, text};
use crate::schedule::apply;

const CGROUP: &str = "/sys/fs/cgroup/vm-flooded";
/// Longer than receive work may be ahead of its part of the limit.
const LASTS: Duration = Duration::from_secs(2);

/// The part of this program that receives, once it is told to begin.
pub fn receive() -> std::io::Result<()> {
    std::io::stdin().lines().next().transpose()?;
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    println!("{}", socket.local_addr()?.port());
    let mut datagram = [0; 64];
    loop {
        socket.recv(&mut datagram)?;
    }
}

/// Killed with the guard.
struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn is_discarded() -> Found {
    let found = discards();
    // what is managed would keep other policies from it
    fief(&["down"])?;
    std::fs::remove_dir(CGROUP).map_err(text)?;
    found
}

fn discards() -> Found {
    let all = [("cpu.limit = \"4%\"", true), ("", false)].map(|(given, limited)| Ok((limited, flood(given)?)));
    let mut told = Vec::new();
    for (limited, (discarded, received)) in all.into_iter().collect::<Result<Vec<_>, String>>()? {
        let found = format!("{discarded} of {received} packets");
        if (discarded > 0) != limited || received == discarded {
            return Err(format!("limited {limited}: {found}"));
        }
        told.push(found);
    }
    Ok(told.join(", without a limit "))
}

/// Packets that were discarded and all that came.
fn flood(given: &str) -> Result<(u64, u64), String> {
    apply(&[("flooded", given)])?;
    std::fs::create_dir_all(CGROUP).map_err(text)?;
    fief(&["manage", CGROUP, "--container", "flooded"])?;
    let counted = || -> Result<(u64, u64), String> {
        let shown = objects(&["show", "flooded"])?;
        let shown = shown.first().ok_or("show says nothing")?;
        Ok((number(shown, "discarded"), number(&shown["usage"], "packets_in")))
    };
    let before = counted()?;
    let program = std::env::current_exe().map_err(text)?;
    let child = Command::new(program).arg("receive").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut receiver = Receiver(child.map_err(text)?);
    let procs: PathBuf = Path::new(CGROUP).join("cgroup.procs");
    std::fs::write(procs, receiver.0.id().to_string()).map_err(text)?;
    receiver.0.stdin.take().expect("piped").write_all(b"\n").map_err(text)?;
    let mut said = String::new();
    BufReader::new(receiver.0.stdout.take().expect("piped")).read_line(&mut said).map_err(text)?;
    let port: u16 = said.trim().parse().map_err(|_| format!("the receiver said {said:?}"))?;
    let socket = UdpSocket::bind(("127.0.0.1", 0)).map_err(text)?;
    let begin = Instant::now();
    while begin.elapsed() < LASTS {
        // a full queue is what a flood leads to
        let _ = socket.send_to(&[0; 16], ("127.0.0.1", port));
    }
    drop(receiver);
    let after = counted()?;
    Ok((after.0 - before.0, after.1 - before.1))
}
