// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which network namespaces may hold lanes. They are written down before the first lane is made, so that a command in another
//! namespace, or after a kill, finds them.

use std::fs;
use std::io;
use std::path::PathBuf;

use fief_bpf::{Context, Result};

use crate::Fief;
use crate::namespace::Known;

impl Fief {
    pub(crate) fn lane_places(&self) -> PathBuf {
        self.run_dir().join("lanes")
    }

    /// Remembers that a network namespace may hold lanes. One that had its number is gone.
    pub(super) fn remember_place(&self, netns: Known) -> Result<()> {
        let mut places = self.places();
        if places.contains(&netns) {
            return Ok(());
        }
        // its lanes led to other interfaces than there are here
        self.forget_lanes(|of, _| of != netns.inode)?;
        places.retain(|place| place.inode != netns.inode);
        places.push(netns);
        self.write_places(&places)
    }

    /// Forgets every network namespace but these.
    pub(super) fn write_places(&self, places: &[Known]) -> Result<()> {
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

    /// The network namespaces that may hold lanes.
    pub(super) fn places(&self) -> Vec<Known> {
        let text = fs::read_to_string(self.lane_places()).unwrap_or_default();
        text.lines().filter_map(Known::read).collect()
    }
}

#[cfg(test)]
mod tests {
    use fief_testkit::{Feature, require};

    use super::*;

    #[test]
    fn a_namespace_takes_the_place_of_one_that_had_its_number() {
        if !require(Feature::Root) {
            return;
        }
        let fief = Fief::with_scope(&format!("ff-{}-places", std::process::id()));
        let known = |text| Known::read(text).expect("a number and a cookie");
        for place in ["5 1", "6 1", "5 1", "5 2"] {
            fief.remember_place(known(place)).expect("noted");
        }
        let noted = fief.places();
        fief.write_places(&[]).expect("forgotten");
        let left = fief.places();
        let _ = fs::remove_dir_all(fief.run_dir());
        assert_eq!((noted, left), (vec![known("6 1"), known("5 2")], Vec::new()));
    }
}
