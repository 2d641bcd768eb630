// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After an upgrade of the package, while what is in force keeps another version's records: an agent serves, says once what to do, and reads
//! again as soon as there is something that it can read; a service that restarts starts without Fief.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use fief_bpf::abi;
use fief_control::Fief;
use fief_testkit::{Cgroup, wait_until};
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::{SOON, fief_binary};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const POLICY: &str = "[container.web]\n";

/// Adds to the version of the records that what is in force says it keeps.
fn age(fief: &Fief, by: i32) {
    let controls = fief.pins().open_map("controls").unwrap();
    let mut control: abi::fief_control = fief_bpf::record::lookup(&controls, &0u32.to_ne_bytes()).unwrap().unwrap();
    control.abi_version = control.abi_version.checked_add_signed(by).unwrap();
    fief_bpf::record::update(&controls, 0, &control).unwrap();
}

struct Agent {
    child: Child,
    said: Receiver<String>,
}

impl Agent {
    fn start(fief: &Fief, words: &[&str]) -> Self {
        let mut command = Command::new(fief_binary());
        command.env("FIEF_SCOPE", fief.pins().scope()).arg("agent").args(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.starts_with("serves "), "{first}");
        let (tell, said) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, said }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // it removes its socket and its lock
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

fn metrics(fief: &Fief) -> String {
    let mut stream = UnixStream::connect(fief.agent_socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_agent_over_another_versions_records_says_what_to_do_and_serves_on() {
    if !ready() {
        return;
    }
    let front = Front::new(Door::Own, POLICY);
    let fief = front.installation().fief();
    age(fief, 1);
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(fief, &["--textfile", folder.path().to_str().unwrap(), "--interval", "1"]);
    let said = agent.said.recv_timeout(SOON).unwrap();
    assert!(said.contains("keeps records of version") && said.contains("fief down"), "{said}");
    let answer = metrics(fief);
    assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("fief down"), "{answer}");
    age(fief, -1);
    wait_until(SOON, || metrics(fief).contains("fief_in_force 1\n")).unwrap();
    wait_until(SOON, || folder.path().join("fief.prom").exists()).unwrap();
    assert_eq!(agent.said.try_iter().count(), 0, "it is said once");
}

#[test]
fn a_service_that_restarts_over_another_versions_records_starts_without_fief() {
    if !ready() {
        return;
    }
    let front = Front::new(Door::Own, POLICY);
    let fief = front.installation().fief();
    let cgroup = Cgroup::new("restarted").unwrap();
    let exec = |words: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(cgroup.path()).arg(fief_binary());
        command.env("FIEF_SCOPE", fief.pins().scope()).arg("exec").args(words).args([
            "--",
            "sh",
            "-c",
            "echo $0; exit 7",
        ]);
        let ended = command.arg("served").output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
    };
    age(fief, 1);
    let (code, stdout, stderr) = exec(&["--here", "--container", "web"]);
    assert_eq!((code, stdout.as_str()), (Some(7), "served\n"), "{stderr}");
    assert!(stderr.contains("keeps records of version") && stderr.contains("starts without Fief"), "{stderr}");
    // somebody reads what a command at a terminal says, and can act on it
    let (code, stdout, stderr) = exec(&["--container", "web"]);
    assert_eq!((code, stdout.as_str()), (Some(125), ""), "{stderr}");
    assert!(stderr.contains("keeps records of version") && stderr.contains("fief down"), "{stderr}");
    age(fief, -1);
    let (code, stdout, stderr) = exec(&["--here", "--container", "web"]);
    assert_eq!((code, stdout.as_str()), (Some(7), "served\n"), "{stderr}");
    assert!(!stderr.contains("without Fief"), "{stderr}");
}
