// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is to be managed: its cgroup, and how a container of its own is called.
//!
//! Names come from whoever made the folder or the process, often another user, and end in a table and on terminals. So what is no
//! name is left out here, since the kernel side takes any bytes from root.

use std::path::{Path, PathBuf};

use fief_bpf::{Context, Error, ErrorKind, Result, abi, process};

use super::{MANAGED, unit};
use crate::{Fief, cgroup};

/// What to manage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A systemd unit, by name.
    Unit(String),
    /// A process, with those below it.
    Process(i32),
    /// A cgroup, by its folder.
    Cgroup(PathBuf),
}

impl Target {
    /// A number is a process, a path is a cgroup, anything else a unit.
    pub fn parse(text: &str) -> Result<Self> {
        if let Ok(pid) = text.parse::<i32>() {
            if pid <= 0 {
                return Err(Error::new(ErrorKind::Other, format!("{pid} is no process")));
            }
            return Ok(Self::Process(pid));
        }
        if text.starts_with('/') {
            return Ok(Self::Cgroup(PathBuf::from(text)));
        }
        Ok(Self::Unit(if text.contains('.') { text.to_owned() } else { format!("{text}.service") }))
    }
}

impl Fief {
    /// The cgroup of a target and the name for its container.
    pub(super) fn cgroup_of(&self, target: &Target) -> Result<(PathBuf, String)> {
        let top = cgroup::mount_point()?;
        let (path, name) = match target {
            Target::Cgroup(path) => (path.clone(), path.file_name().unwrap_or_default().to_string_lossy()),
            Target::Unit(unit) => {
                let name = unit.rsplit_once('.').map_or(unit.as_str(), |(name, _)| name);
                (unit::cgroup(&top, unit)?, name.into())
            }
            Target::Process(pid) => return self.cgroup_of_process(*pid, &top),
        };
        require_below(&top, &path)?;
        Ok((path, component(&name)))
    }

    fn cgroup_of_process(&self, pid: i32, top: &Path) -> Result<(PathBuf, String)> {
        let name = name_of_process(pid)?;
        let path = cgroup::of_process(pid)?;
        if path != top {
            return Ok((path, name));
        }
        // hooks at the top would tax the whole machine: the process and its children get a cgroup of their own
        let own = cgroup::own(self.pins().scope())?.join(format!("{MANAGED}{pid}"));
        let is_new = !own.exists();
        cgroup::create(&own)?;
        let moved = cgroup::join(&own, pid).and_then(|()| cgroup::join_all(&own, || outside(&own, pid)));
        if moved.is_err() && is_new {
            // none of them is managed; the first error is the one to tell
            let _ = cgroup::remove(&own, top);
        }
        moved.map(|()| (own, name))
    }
}

/// Errors: a folder is not in the hierarchy at `top`, or is its root. That is told by its number, since a path has many spellings.
fn require_below(top: &Path, path: &Path) -> Result<()> {
    if !path.starts_with(top) {
        return Err(Error::new(ErrorKind::NotFound, format!("{} is not below {}", path.display(), top.display()))
            .remedy("name a folder of the cgroup2 hierarchy"));
    }
    if cgroup::id(path)? == cgroup::id(top)? {
        let what = format!("{} is the root cgroup, whose hooks would tax the whole machine", path.display());
        return Err(Error::new(ErrorKind::Other, what)
            .remedy("name a unit, a process or a cgroup below it; a process that is in no other cgroup gets one"));
    }
    Ok(())
}

/// One component of a path, as long as a name may be; empty if nothing is left.
fn component(name: &str) -> String {
    let fit: String = name.chars().filter(|c| *c != '/' && !c.is_control()).collect();
    // what begins so is a container that was never named, of anybody's
    let fit = fit.trim_start_matches('#');
    fit[..fit.floor_char_boundary(abi::FIEF_NAME_LEN as usize - 1)].to_owned()
}

/// What a process is called, which may be any bytes.
fn name_of_process(pid: i32) -> Result<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).context(|| format!("there is no process {pid}"))?;
    Ok(component(&format!("{}-{pid}", String::from_utf8_lossy(&name).trim())))
}

/// A process and its descendants, those that are not in this cgroup of ours, and not ended.
fn outside(own: &Path, pid: i32) -> Vec<i32> {
    let is_inside = |pid: i32| cgroup::of_process(pid).is_ok_and(|path| path.starts_with(own));
    family(pid).into_iter().filter(|pid| !is_inside(*pid) && !process::has_ended(*pid)).collect()
}

/// A process and its descendants.
fn family(pid: i32) -> Vec<i32> {
    let below = cgroup::children_of_process(pid).into_iter().flat_map(family);
    std::iter::once(pid).chain(below).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::{Read, Write};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tells_units_processes_and_cgroups_apart() {
        assert_eq!(Target::parse("nginx").ok(), Some(Target::Unit("nginx.service".into())));
        assert_eq!(Target::parse("a.slice").ok(), Some(Target::Unit("a.slice".into())));
        assert_eq!(Target::parse("42").ok(), Some(Target::Process(42)));
        assert_eq!(Target::parse("/sys/fs/cgroup/x").ok(), Some(Target::Cgroup("/sys/fs/cgroup/x".into())));
        assert!(Target::parse("-1").is_err());
    }

    #[test]
    fn a_long_name_is_cut_to_what_a_component_may_be() {
        assert_eq!(component(&"x".repeat(80)).len(), 31);
        assert_eq!(component("a/b"), "ab");
    }

    #[test]
    fn no_name_is_cut_inside_a_letter() {
        assert_eq!(component(&"ü".repeat(31)), "ü".repeat(15));
        assert_eq!(component(&format!("x{}", "ü".repeat(31))), format!("x{}", "ü".repeat(15)));
        assert_eq!(component(&"語".repeat(11)), "語".repeat(10));
    }

    #[test]
    fn a_name_has_nothing_that_a_terminal_obeys_and_is_not_that_of_one_without_a_name() {
        assert_eq!(component("\u{1b}[2Jweb\n\u{7f}\u{9b}1"), "[2Jweb1");
        assert_eq!(component("##12"), "12");
        assert_eq!(component("\n#12"), "12", "what is left begins so");
        assert_eq!(component("\n\t"), "");
    }

    #[test]
    fn a_process_is_found_whatever_bytes_its_name_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join(OsStr::from_bytes(b"\xffweb"));
        std::os::unix::fs::symlink("/bin/cat", &program).expect("made");
        let mut command = Command::new(program);
        let mut child = command.arg0("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        // the kernel names it a moment after `spawn` goes on
        child.stdin.as_mut().expect("a pipe").write_all(b"x").expect("it reads");
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it writes");
        let name = name_of_process(child.id().cast_signed());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert_eq!(name.expect("it runs"), format!("\u{fffd}web-{}", child.id()));
    }

    #[test]
    fn the_root_of_the_hierarchy_is_refused_however_it_is_spelt() {
        let top = tempfile::tempdir().expect("a folder");
        let top = top.path();
        let web = top.join("web");
        std::fs::create_dir(&web).expect("made");
        require_below(top, &web).expect("below it");
        for root in [top.to_owned(), top.join(""), top.join("."), web.join("..")] {
            let refused = require_below(top, &root).expect_err("it is the root").to_string();
            assert!(refused.contains("the root cgroup") && refused.contains("whole machine"), "{refused}");
        }
        let outside = require_below(&web, top).expect_err("above it");
        assert_eq!(outside.kind(), ErrorKind::NotFound);
        assert_eq!(require_below(top, &top.join("none")).expect_err("not there").kind(), ErrorKind::NotFound);
    }
}
