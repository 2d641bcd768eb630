// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent tells the journal, as a journal of the test's own hears it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use crate::agent::Agent;
use crate::place::Place;

/// In place of the machine's, for the processes of a mount namespace.
struct Journal {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

type Record = BTreeMap<String, String>;

impl Journal {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("journal")).expect("own folder");
        let socket = UnixDatagram::bind(folder.path().join("journal/socket")).expect("a socket");
        // a look that cost a second is followed by a pause of 400
        socket.set_read_timeout(Some(Duration::from_secs(600))).expect("a socket");
        Self { folder, socket }
    }

    fn agent(&self, place: &Place) -> Agent {
        let there = r#"mkdir -p /run/systemd && mount --bind "$1" /run/systemd && shift && exec "$@""#;
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", there, "sh"]).arg(self.folder.path()).arg(env!("CARGO_BIN_EXE_fief"));
        place.namespace.enter(unshare.env("FIEF_SCOPE", &place.scope));
        Agent::of(unshare, &["--journal"])
    }

    /// The next record of an event; others may come before.
    fn next(&self, event: &str) -> Record {
        let mut bytes = vec![0; 65_536];
        loop {
            let length = match self.socket.recv(&mut bytes) {
                Ok(length) => length,
                // A receive with a limit of time is not taken up again after a signal, as glibc sends one to every
                // thread when another test becomes another user.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("no {event}: {error}"),
            };
            let record = record(&bytes[..length]);
            if record.get("FIEF_EVENT").is_some_and(|own| own == event) {
                return record;
            }
        }
    }
}

/// As systemd has it in JOURNAL_NATIVE_PROTOCOL: a line with `=`, or a name, eight bytes of length, and the value.
fn record(mut bytes: &[u8]) -> Record {
    let mut fields = Record::new();
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8(bytes[..end].to_vec()).expect("text");
        bytes = &bytes[end + 1..];
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
                let (value, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
                bytes = rest.strip_prefix(b"\n").expect("the end of a field");
                (line, String::from_utf8(value.to_vec()).expect("text"))
            }
        };
        fields.insert(name, value);
    }
    assert!(bytes.is_empty(), "all of it is fields");
    fields
}

#[test]
fn what_happens_goes_to_the_journal_in_fields() {
    let Some(place) = Place::new() else { return };
    let journal = Journal::new();
    let agent = journal.agent(&place);
    place.apply();
    assert_eq!(place.fief().args(["ban", "192.0.2.7", "--for", "1h"]).ends().code, 0);

    let policy = journal.next("policy-in-force");
    assert_eq!((policy["FIEF_MODE"].as_str(), policy["PRIORITY"].as_str()), ("enforce", "5"), "{policy:?}");
    assert_eq!((&policy["FIEF_SCOPE"], policy["SYSLOG_IDENTIFIER"].as_str()), (&place.scope, "fief-agent"));
    assert!(policy["MESSAGE"].starts_with("a policy is in force since 2"), "{policy:?}");
    let is_id = |id: &str| id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_id(&policy["MESSAGE_ID"]), "{policy:?}");
    assert!(!policy.contains_key("FIEF_SOURCE"), "what there is not has no field: {policy:?}");

    let problem = journal.next("problem");
    assert_eq!(problem["PRIORITY"], "4");
    assert!(problem["MESSAGE"].contains("nothing listens on 0.0.0.0:80"), "{problem:?}");
    let out = journal.next("shut-out");
    assert_eq!((out["FIEF_SOURCE"].as_str(), out["FIEF_REASON"].as_str()), ("192.0.2.7", "banned"), "{out:?}");
    let seconds: u64 = out["FIEF_SECONDS"].parse().expect("a number");
    assert!((3000..=3600).contains(&seconds), "{out:?}");

    assert_eq!(place.fief().args(["pardon", "192.0.2.7"]).ends().code, 0);
    assert_eq!(journal.next("let-in")["FIEF_SOURCE"], "192.0.2.7");
    assert_eq!(place.fief().arg("down").ends().code, 0);
    journal.next("policy-gone");
    drop(agent);
}

#[test]
fn where_no_journal_listens_that_is_said() {
    let Some(place) = Place::new() else { return };
    let journal = Journal::new();
    drop(std::fs::remove_file(journal.folder.path().join("journal/socket")));
    let there = r#"mkdir -p /run/systemd && mount --bind "$1" /run/systemd && shift && exec "$@""#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", there, "sh"]).arg(journal.folder.path()).arg(env!("CARGO_BIN_EXE_fief"));
    place.namespace.enter(unshare.env("FIEF_SCOPE", &place.scope));
    let output = unshare.args(["agent", "--journal"]).output().expect("unshare starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot reach the system's journal"), "{said}");
}
