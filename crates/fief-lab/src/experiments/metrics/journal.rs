// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A journal of the experiment's own: the agent looks for events and writes them as it does under systemd, and the machine's journal
//! has none of them.

use crate::error::{Context, Error, Result};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// In a mount namespace, whose end takes it away.
const THERE: &str = r#"mkdir -p /run/systemd/journal && mount --bind "$1" /run/systemd/journal && shift && exec "$@""#;
/// Longer than any record that is not passed as a file.
const LONGEST: usize = 256 * 1024;

pub struct Journal {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
    records: Receiver<()>,
    ended: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Journal {
    pub fn new() -> Result<Self> {
        let what = "make a journal for the agent";
        let folder = tempfile::tempdir().context(what)?;
        let socket = UnixDatagram::bind(folder.path().join("socket")).context(what)?;
        let (reads, (seen, records)) = (socket.try_clone().context(what)?, channel());
        let ended = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&ended);
        // a writer waits for a reader
        let read = move || {
            let mut record = vec![0; LONGEST];
            loop {
                match reads.recv(&mut record) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Ok(1..) => drop(seen.send(())),
                    // an agent tries whether there is a journal by an empty record
                    Ok(0) if !has_ended.load(Ordering::Relaxed) => {}
                    Ok(0) | Err(_) => return,
                }
            }
        };
        Ok(Self { folder, socket, records, ended, reader: Some(thread::spawn(read)) })
    }

    /// The same command, for which this is the system's journal.
    pub fn of(&self, command: &Command) -> Command {
        let mut there = Command::new("unshare");
        there.args(["--mount", "sh", "-c", THERE, "sh"]).arg(self.folder.path());
        there.arg(command.get_program()).args(command.get_args());
        there.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        there
    }

    /// Waits until something is written.
    pub fn wait(&self, deadline: Duration) -> Result<()> {
        let record = self.records.recv_timeout(deadline);
        record.map_err(|_| Error::failed("the agent wrote nothing into the journal that it was given"))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // its receive returns
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    #[test]
    fn what_is_written_is_read_and_the_reader_ends() {
        let journal = Journal::new().expect("a socket");
        let socket = journal.folder.path().join("socket");
        let writer = UnixDatagram::unbound().expect("a socket");
        writer.send_to(b"", &socket).expect("it is read");
        // more than a queue of datagrams holds
        for _ in 0..100 {
            writer.send_to(b"MESSAGE=x\n", &socket).expect("it is read");
        }
        (0..100).for_each(|_| journal.wait(DEADLINE).expect("it was written"));
        drop(journal);
        assert!(!socket.exists());
    }

    #[test]
    fn a_command_keeps_its_words_and_its_environment() {
        let journal = Journal::new().expect("a socket");
        let mut command = Command::new("fief");
        command.args(["agent", "--journal"]).env("FIEF_SCOPE", "x");
        let there = journal.of(&command);
        let words: Vec<_> = there.get_args().collect();
        assert_eq!(words[words.len() - 3..], ["fief", "agent", "--journal"]);
        assert!(there.get_envs().any(|(name, value)| name == "FIEF_SCOPE" && value == Some("x".as_ref())));
    }
}
