// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the reading commands have in common: a look at what is in force, and a container found by its path.

use crate::failure::{Failure, Result};
use fief_control::{Error, ErrorKind, Fief, Snapshot};

/// Where snapshots come from: the kernel, or a test.
pub trait Source {
    fn look(&mut self) -> Result<Snapshot>;
}

impl Source for Fief {
    fn look(&mut self) -> Result<Snapshot> {
        self.snapshot().map_err(|error| failure(self, error))
    }
}

/// An error of reading, with the usual cause of it.
pub fn failure(fief: &Fief, error: Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound if !fief.installed() => nothing(),
        _ => error.into(),
    }
}

/// There is nothing to read.
pub fn nothing() -> Failure {
    nothing_in_force(nix::unistd::geteuid().is_root())
}

fn nothing_in_force(is_root: bool) -> Failure {
    match is_root {
        true => Failure::new("nothing is in force; put a policy in force by `fief apply FILE`"),
        false => Failure::new(
            "nothing is in force as far as this user can see; become root, or put a policy in force by `fief apply FILE`",
        ),
    }
}

/// Position of a container.
pub fn find(snapshot: &Snapshot, path: &str) -> Result<usize> {
    let wanted = path.strip_prefix('/').unwrap_or(path);
    snapshot.containers.iter().position(|view| view.path == wanted || view.path == path).ok_or_else(|| {
        let last = wanted.rsplit('/').next().unwrap_or(wanted);
        let likely = snapshot.containers.iter().find(|view| view.path.rsplit('/').next() == Some(last));
        let advice = match likely {
            Some(view) => format!("did you mean {}? `fief ls` lists all", view.path),
            None => "`fief ls` lists all".to_owned(),
        };
        Failure::new(format!("no container is called {path}; {advice}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn a_container_is_found_by_its_path() {
        let snapshot =
            sample::snapshot(vec![sample::container("shop", 8, None), sample::container("shop/gold", 9, Some(8))]);
        assert_eq!(find(&snapshot, "shop/gold").ok(), Some(1));
        assert_eq!(find(&snapshot, "/shop").ok(), Some(0));
        let failure = find(&snapshot, "gold").expect_err("no such path");
        assert_eq!(failure.to_string(), "no container is called gold; did you mean shop/gold? `fief ls` lists all");
    }

    #[test]
    fn nothing_in_force_comes_with_the_remedy() {
        for is_root in [true, false] {
            assert!(nothing_in_force(is_root).to_string().contains("`fief apply FILE`"));
        }
    }
}
