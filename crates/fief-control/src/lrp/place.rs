// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which network namespaces may hold lanes. They are written down before the first lane is made, so that a command in another
//! namespace, or after a kill, finds them.

use std::fs;
use std::io;
use std::path::PathBuf;

use fief_bpf::{Context, Result};

use crate::Fief;

impl Fief {
    fn lane_places(&self) -> PathBuf {
        self.run_dir().join("lanes")
    }

    /// Remembers that a network namespace may hold lanes.
    pub(super) fn remember_place(&self, netns: u64) -> Result<()> {
        let mut places = self.places();
        if !places.contains(&netns) {
            places.push(netns);
        }
        self.write_places(&places)
    }

    /// Forgets every network namespace but these.
    pub(super) fn write_places(&self, places: &[u64]) -> Result<()> {
        let path = self.lane_places();
        let what = || format!("cannot write {}", path.display());
        if places.is_empty() {
            return match fs::remove_file(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done.context(what),
            };
        }
        self.make_run_dir()?;
        // beside it and renamed: an empty note, which a kill can leave, would hide the lanes from all that sweep
        let fresh = path.with_extension("new");
        fs::write(&fresh, places.iter().map(|netns| format!("{netns}\n")).collect::<String>()).context(what)?;
        fs::rename(&fresh, &path).context(what)
    }

    /// The network namespaces that may hold lanes, by inode.
    pub(super) fn places(&self) -> Vec<u64> {
        let text = fs::read_to_string(self.lane_places()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}
