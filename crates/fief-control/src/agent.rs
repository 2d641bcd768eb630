// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the agent of an installation is found. One serves at a time: the lock goes with its process, however that ends, and the
//! socket that a killed one leaves is nobody's.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use fief_bpf::{Context, Error, ErrorKind, Result};
use nix::fcntl::Flock;

use crate::Fief;
use crate::run_folder::{self, RUN};

/// The right to serve at the agent's socket. It outlives `fief down`: an agent serves whatever is in force.
#[derive(Debug)]
pub struct AgentPlace {
    socket: PathBuf,
    lock_file: PathBuf,
    _lock: Flock<File>,
}

impl Fief {
    /// `/run/fief/<scope>.agent`
    pub fn agent_socket(&self) -> PathBuf {
        Path::new(RUN).join(format!("{}.agent", self.pins().scope()))
    }

    /// Takes the place of the agent. Errors: [`ErrorKind::Exists`] another one has it.
    pub fn agent_place(&self) -> Result<AgentPlace> {
        let path = Path::new(RUN).join(format!("{}.agent.lock", self.pins().scope()));
        let lock = run_folder::lock_now(&path)?.ok_or_else(|| {
            let what = format!("an agent serves already, at {}", self.agent_socket().display());
            Error::new(ErrorKind::Exists, what).remedy("end that one first")
        })?;
        let socket = self.agent_socket();
        let removed = match fs::remove_file(&socket) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        };
        removed.context(|| format!("cannot remove {}", socket.display()))?;
        Ok(AgentPlace { socket, lock_file: path, _lock: lock })
    }
}

impl AgentPlace {
    /// Where to make the socket; nothing is there.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for AgentPlace {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.lock_file);
    }
}
