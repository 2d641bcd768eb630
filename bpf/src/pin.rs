// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The place of Fief's state in bpffs, and how it gets there as a whole or not at all.
//!
//! ```text
//! /sys/fs/bpf/fief/maps/<map>            shared state
//!                  programs/<program>    to attach to more cgroups, and the admin programs
//!                  links/<program>       machine-wide attachments
//!                  units/<id>/<program>  attachments to one managed cgroup
//!                  top/<program>         attachments to the top of the cgroups
//!                  netns/<inode>         sk_lookup of one network namespace
//!                  interfaces/<inode>/<index>   the front door at one interface of it
//!                  interfaces/<inode>/<index>-out   the program that reads the answers that leave by it
//!                  interfaces/<inode>/<index>-own   the program that notes, at the loopback, the machine's own connections
//!                  interfaces/<inode>/<index>-clock   the program of queues that sees answers leave
//!                  interfaces/<inode>/<index>-ticks   the one that gets what goes round for them
//!                  files/<build>-<instance>/<program>   attachments that charge labelled files
//!                  schedule/link         the scheduler, while a policy needs one
//!                  schedule/state        what it tells of itself; `timer`, `moments`: keep its timers going
//!                  schedule/turns        what orders from outside are asked by; `objects`: what became of them
//!                  schedule/programs/<program>  where it asks them
//!                  schedule/orders/<number>/<program>  attachments of one order
//!                  schedule/threads      its iterator over threads
//!                  lanes/<inode>/<program>-<index>   the programs that sort into lanes, and the lanes' ends
//! ```
//!
//! An installation is built below `fief~<pid>` and renamed (bpffs refuses dots in names). The next builder sweeps the remains
//! of a killed one. Where bpffs is open to all, as one that is mounted without a mode, users can make folders and links there: nothing
//! below [`Pins`] is believed or followed that does not lie in a folder of root's, which nobody else can write.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use libbpf_rs::{MapHandle, Program};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::statfs;

use crate::attachment;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::link;

const BPFFS: &str = "/sys/fs/bpf";
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Names of cgroups and sockets are made of it.
const SCOPE_MOST: usize = 64;

/// Everything below the folder of this name is ours to remove.
fn is_scope(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=SCOPE_MOST).contains(&name.len()) && name.bytes().all(fits)
}

/// The pins of one installation of Fief, by its scope (`fief` unless tests run one of their own).
#[derive(Debug, Clone)]
pub struct Pins {
    scope: String,
    root: PathBuf,
}

impl Pins {
    /// The installation named by `FIEF_SCOPE`, or the machine's one.
    pub fn from_env() -> Result<Self> {
        let scope = std::env::var_os("FIEF_SCOPE").unwrap_or_default();
        match scope.to_str() {
            Some("") => Ok(Self::new("fief")),
            Some(name) if is_scope(name) => Ok(Self::new(name)),
            _ => Err(Error::new(ErrorKind::Other, format!("FIEF_SCOPE is no name: {}", scope.display()))
                .remedy(format!("use at most {SCOPE_MOST} letters, digits, - and _, or leave it out"))),
        }
    }

    /// The installation with this scope.
    pub fn new(scope: &str) -> Self {
        Self { scope: scope.to_owned(), root: bpffs().join(scope) }
    }

    /// Its name.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Everything of it is below.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether anything is installed.
    pub fn exist(&self) -> bool {
        is_roots(&self.root) && self.root.join("maps").is_dir()
    }

    /// Whether something is in their place that is not root's.
    pub fn are_others(&self) -> bool {
        self.root.symlink_metadata().is_ok() && !is_roots(&self.root)
    }

    /// The scopes of all installations that this user can see, by name.
    pub fn all() -> Vec<String> {
        let entries = fs::read_dir(bpffs()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut scopes: Vec<String> = names.filter(|name| is_scope(name) && Self::new(name).are_ours()).collect();
        scopes.sort();
        scopes
    }

    /// Others may keep maps in bpffs too.
    fn are_ours(&self) -> bool {
        self.exist() && self.map("containers").exists() && self.map("descriptors").exists()
    }

    /// The pin of a map.
    pub fn map(&self, name: &str) -> PathBuf {
        self.root.join("maps").join(name)
    }

    /// Opens a pinned program.
    pub fn open_program(&self, name: &str) -> Result<OwnedFd> {
        Program::fd_from_pinned_path(self.program(name)).context(|| format!("cannot open the program {name}"))
    }

    /// Opens a pinned map.
    pub fn open_map(&self, name: &str) -> Result<MapHandle> {
        MapHandle::from_pinned_path(self.map(name)).context(|| format!("cannot open the map {name}"))
    }

    /// The pin of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.root.join("programs").join(name)
    }

    /// The folder of the machine-wide attachments.
    pub fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// The folder of the attachments to one managed cgroup.
    pub fn unit(&self, cgroup: u64) -> PathBuf {
        self.root.join("units").join(cgroup.to_string())
    }

    /// The folder that holds [`Pins::unit`].
    pub fn units(&self) -> PathBuf {
        self.root.join("units")
    }

    /// The folder of attachments to the top of the cgroups.
    pub fn top(&self) -> PathBuf {
        self.root.join("top")
    }

    /// The folder of attachments to network namespaces.
    pub fn netns(&self) -> PathBuf {
        self.root.join("netns")
    }

    /// The folder of what attaches the lanes: to interfaces of the network, and to their own.
    pub fn lanes(&self) -> PathBuf {
        self.root.join("lanes")
    }

    /// The folder of what charges labelled files.
    pub fn files(&self) -> PathBuf {
        self.root.join("files")
    }

    /// The folder of the scheduler.
    pub fn schedule(&self) -> PathBuf {
        self.root.join("schedule")
    }

    /// Its link, which all its programs share.
    pub(crate) fn scheduler_link(&self) -> PathBuf {
        self.schedule().join("link")
    }

    /// The record of the one that is attached, or was.
    pub(crate) fn scheduler_state(&self) -> PathBuf {
        self.schedule().join("state")
    }

    /// The map that has its timer.
    pub(crate) fn scheduler_timer(&self) -> PathBuf {
        self.schedule().join("timer")
    }

    /// The map that has the timers of its moments.
    pub(crate) fn scheduler_moments(&self) -> PathBuf {
        self.schedule().join("moments")
    }

    /// The map of the records by which the scheduler asks orders from outside.
    pub(crate) fn scheduler_turns(&self) -> PathBuf {
        self.schedule().join("turns")
    }

    /// The map of what the scheduler has counted of each order.
    pub(crate) fn scheduler_objects(&self) -> PathBuf {
        self.schedule().join("objects")
    }

    /// A program of the scheduler that asks them.
    pub(crate) fn scheduler_program(&self, name: &str) -> PathBuf {
        self.schedule().join("programs").join(name)
    }

    /// The folder that holds the attachments of each order, below its number.
    pub(crate) fn orders(&self) -> PathBuf {
        self.schedule().join("orders")
    }

    /// The iterator that tells its threads.
    pub(crate) fn scheduler_threads(&self) -> PathBuf {
        self.schedule().join("threads")
    }

    /// The folder of attachments to network interfaces.
    pub fn interfaces(&self) -> PathBuf {
        self.root.join("interfaces")
    }

    /// A place beside the installation where the next one is built; [`Staging::commit`] puts it into force. The scope's state is locked.
    pub fn stage(&self) -> Result<Staging> {
        mount_bpffs()?;
        self.sweep()?;
        let root = bpffs().join(format!("{}~{}", self.scope, std::process::id()));
        // not one that a user has made since
        new_dir().create(&root).context(|| format!("cannot make the folder {} for pins", root.display()))?;
        for folder in ["maps", "programs", "links", "units", "netns", "interfaces"] {
            make_dir(&root.join(folder))?;
        }
        let pins = Self { scope: self.scope.clone(), root };
        Ok(Staging { pins, target: self.root.clone(), committed: false })
    }

    /// Removes every pin. What acts on packets and calls has stopped to when this returns, also if somebody else holds its
    /// link; the rest goes when nothing else holds it. The scope's state is locked.
    pub fn remove(&self) -> Result<()> {
        // older remains that stay keep nothing in force
        let swept = self.sweep();
        let root = bpffs().join(format!("{}~{}", self.scope, std::process::id()));
        let gone = Self { scope: self.scope.clone(), root };
        // out of force in one step; killed while it removes them, the next one goes on
        match fs::rename(&self.root, &gone.root) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => swept,
            Err(e) => Err(e).context(|| format!("cannot take the pins at {} out of force", self.root.display())),
            Ok(()) => {
                // whatever a user put in its place acts on nothing
                let rows = attachment::all().filter(|_| is_roots(&gone.root));
                let acting: BTreeSet<_> = rows.filter_map(|row| row.acts_below(&gone)).collect();
                acting.iter().try_for_each(|folder| link::remove_below(folder))?;
                remove_tree(&gone.root).and(swept)
            }
        }
    }

    /// Removes what was being built, or removed, when a kill came. Who sweeps holds the scope's lock, so nobody is at work there, whoever
    /// has the number by now.
    fn sweep(&self) -> Result<()> {
        let prefix = format!("{}~", self.scope);
        for entry in fs::read_dir(bpffs()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(&prefix));
            if pid.is_some_and(|pid| pid.parse::<u32>().is_ok()) {
                remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// An installation that is being built; dropped before [`Staging::commit`], it leaves nothing.
#[derive(Debug)]
pub struct Staging {
    pins: Pins,
    target: PathBuf,
    committed: bool,
}

impl Staging {
    /// The pins of the installation under way.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Puts it into force, in one step.
    pub fn commit(mut self) -> Result<()> {
        if !is_roots(&self.target) {
            remove_tree(&self.target)?;
        }
        fs::rename(&self.pins.root, &self.target)
            .context(|| format!("cannot put the pins into force at {}", self.target.display()))
            .map_err(|e| e.remedy(format!("if users make folders in {BPFFS}, close it to them: chmod go-w {BPFFS}")))?;
        self.committed = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed {
            // nothing better can be done here; the next installation sweeps it
            let _ = remove_tree(&self.pins.root);
        }
    }
}

/// Makes a folder for pins, readable by root alone.
pub fn make_dir(path: &Path) -> Result<()> {
    new_dir().recursive(true).create(path).context(|| format!("cannot make the folder {} for pins", path.display()))
}

fn new_dir() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// Whether this is a folder of root's, and no link to one.
fn is_roots(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == 0)
}

/// Removes a tree of pins, or what else a user has put there; one that is not there is no error.
pub fn remove_tree(path: &Path) -> Result<()> {
    let removed = match fs::remove_dir_all(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => fs::remove_file(path),
        done => done,
    };
    match removed {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done.context(|| format!("cannot remove the pins below {}", path.display())),
    }
}

/// The path as the kernel's interface wants it.
pub(crate) fn c_path(path: &Path) -> Result<std::ffi::CString> {
    std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(ErrorKind::Other, format!("the path {} holds a NUL", path.display())))
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|fs| fs.filesystem_type().0 == BPF_FS_MAGIC)
}

/// Where bpffs is: `ip netns exec` hides it behind a mount namespace of its own, and then an ancestor still sees it.
fn bpffs() -> PathBuf {
    let own = PathBuf::from(BPFFS);
    if is_bpffs(&own) {
        return own;
    }
    crate::process::ancestor_roots()
        .map(|root| root.join(BPFFS.trim_start_matches('/')))
        .find(|path| is_bpffs(path))
        .unwrap_or(own)
}

/// Mounts bpffs where it is expected, unless it is there. Each mount is a file system of its own, so one that only
/// this mount namespace saw would lose the pins with it.
fn mount_bpffs() -> Result<()> {
    if is_bpffs(&bpffs()) {
        return Ok(());
    }
    let remedy = format!("mount it: mount -t bpf -o mode=0700 bpf {BPFFS}");
    if Path::new("/sys/fs/cgroup").read_dir().is_ok_and(|mut dir| dir.next().is_none()) {
        // a fresh sysfs, as `ip netns exec` mounts it
        let what = format!("{BPFFS} is not mounted, and this mount namespace is not the machine's");
        let enter = "enter the network namespace alone: nsenter --net=/run/netns/NAME, not ip netns exec";
        return Err(Error::new(ErrorKind::NotFound, what).remedy(enter));
    }
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .context(|| format!("cannot mount bpffs at {BPFFS}"))
        .map_err(|e| e.remedy(format!("run as root, or {remedy}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_one_folder_of_its_own() {
        assert!(["fief", "ff-lab-17", "A_b", &"a".repeat(SCOPE_MOST)].into_iter().all(is_scope));
        assert!(
            !["", ".", "..", "a/b", "fief~1", "a b", "\u{e9}", &"a".repeat(SCOPE_MOST + 1)].into_iter().any(is_scope)
        );
    }

    #[test]
    fn whatever_is_in_the_place_of_a_tree_is_removed_and_nothing_it_leads_to() {
        let [folder, outside] = [tempfile::tempdir(), tempfile::tempdir()].map(|made| made.expect("a folder"));
        let [file, link, tree] = ["file", "link", "tree"].map(|name| folder.path().join(name));
        fs::write(&file, "").expect("a file");
        std::os::unix::fs::symlink(outside.path(), &link).expect("a link");
        fs::create_dir_all(tree.join("below")).expect("folders");
        for place in [&file, &link, &tree, &tree] {
            remove_tree(place).expect("whatever it is");
            assert!(place.symlink_metadata().is_err(), "{}", place.display());
        }
        assert!(outside.path().exists());
    }
}
