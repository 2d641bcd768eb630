// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user does with containers by files, with the rights and the quota that its own calls have (`bpf/core/asked.bpf.h`).
//!
//! As those calls it is done without the lock of the state, so that no user keeps an operator from applying a policy; but for the
//! moment in which CPU time begins to be charged.
//! Limits: cgroups that divide the CPU do not follow an attribute until something is applied or managed.

use std::io;
use std::os::fd::AsFd;

use fief_bpf::admin::{Ask, Asked};
use fief_bpf::{Context, ErrorKind, Result, process};
use nix::errno::Errno;

use crate::operate::{Attribute, Reference};
use crate::{Bound, Fief, cgroup};

pub use fief_bpf::admin::Asker;

/// Of a process that is bound at once.
const MOST_THREADS: usize = 1024;

impl Fief {
    /// `user/<uid>` of the asker, who is outside of every unit; made if there is none. What it makes there counts for its quota.
    pub fn place_asked(&self, asker: Asker) -> Result<Reference> {
        self.ask(asker, Ask::Place)
    }

    /// Makes a container in the asker's home, in its place or in one that it made so. It stays until it is ended, or its parent ends.
    ///
    /// Errors: [`ErrorKind::Permission`], [`ErrorKind::Full`], too deep.
    pub fn make_asked(&self, asker: Asker, parent: Reference, name: &str) -> Result<Reference> {
        self.ask(asker, Ask::Create(parent.into(), name))
    }

    /// Ends a container that this user made so, and that nobody uses.
    pub fn end_asked(&self, asker: Asker, container: Reference) -> Result<()> {
        self.ask(asker, Ask::End(container.into())).map(drop)
    }

    /// Sets an attribute of a container that this user made so, within the means of those above.
    pub fn set_asked(&self, asker: Asker, container: Reference, attribute: Attribute) -> Result<()> {
        let (number, value) = attribute.number_and_value();
        self.ask(asker, Ask::Set(container.into(), number, value)).map(drop)
    }

    /// Binds every thread of a process that the asker may bind, to a container that its user made so, or to its home. One with more
    /// than 1024 threads is refused: its own calls can bind each of them.
    pub fn bind_asked(&self, asker: Asker, pid: i32, container: Reference) -> Result<Bound> {
        let asked = Asked::open(self.pins())?;
        let threads: Vec<_> = cgroup::each_thread(pid).take(MOST_THREADS + 1).collect();
        if threads.len() > MOST_THREADS {
            return Err(io::Error::from(Errno::E2BIG)).context(|| format!("process {pid} has too many threads"));
        }
        let known = process::open(pid).and_then(|process| process::identity(process.as_fd()));
        let known = known.context(|| format!("there is no process {pid}"))?;
        // first: who is forked before would have no record, and nobody would end that of who ends before
        let begins = self.ensure_charged()?;
        let (mut bound, mut failed) = (0, None);
        for tid in threads {
            match asked.run(asker, Ask::Bind(container.into(), tid, known)) {
                Ok(_) => bound += 1,
                // the thread, or the container
                Err(error) if error.kind() == ErrorKind::NotFound => failed = Some(error),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if bound > 0 {
            // another command may have found before that nobody needs it
            self.ensure_charged()?;
        } else if begins {
            self.need_ends()?;
        }
        match failed {
            Some(error) if bound == 0 || error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(Bound { threads: bound }),
        }
    }

    fn ask(&self, asker: Asker, ask: Ask<'_>) -> Result<Reference> {
        Ok(Asked::open(self.pins())?.run(asker, ask)?.into())
    }
}
