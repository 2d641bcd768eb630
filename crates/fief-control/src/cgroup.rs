// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cgroup2 hierarchy, which has the hooks of managed units; here is its membership. What divides the CPU is in `groups`.

mod removal;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fief_bpf::{Context, Error, ErrorKind, Result, process};

pub use removal::{remove, remove_empty, remove_top};

use crate::mount_table;

/// Where cgroup2 is mounted: `/sys/fs/cgroup`, or beside version 1 at `unified`.
pub fn mount_point() -> Result<PathBuf> {
    static FOUND: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    // the kernel writes all mounts of the machine for each look; a command looks several times
    if let Some(path) = found.as_ref().filter(|path| path.join("cgroup.procs").exists()) {
        return Ok(path.clone());
    }
    *found = mounted(&|kind, _| kind == "cgroup2");
    found.clone().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "cgroup2 is not mounted")
            .remedy("mount it: mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    })
}

/// Where a hierarchy is mounted, by the type of the file system and its options. `ip netns exec` hides it behind a mount
/// namespace of its own; then an ancestor still sees it.
pub fn mounted(wanted: &dyn Fn(&str, &str) -> bool) -> Option<PathBuf> {
    let below = |root: PathBuf, table: &Path| -> Option<PathBuf> {
        let folder = place_of(&fs::read(table).ok()?, wanted)?;
        Some(root.join(folder.strip_prefix("/").unwrap_or(&folder)))
    };
    let hidden = || {
        process::ancestor_roots().find_map(|root| {
            let mounts = root.with_file_name("mountinfo");
            below(root, &mounts)
        })
    };
    below(PathBuf::from("/"), Path::new("/proc/self/mountinfo"))
        .or_else(hidden)
        .filter(|path| path.join("cgroup.procs").exists())
}

fn place_of(table: &[u8], wanted: &dyn Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mount_table::mounts(table).find(|mount| wanted(&mount.kind, &mount.options)).map(|mount| mount.folder)
}

/// The folder of our own cgroups of a scope.
pub fn own(scope: &str) -> Result<PathBuf> {
    Ok(mount_point()?.join("fief").join(scope))
}

/// Makes a cgroup, its parents too; one that is there is no error. It is thawed: a command that
/// was killed in remove() may have left it frozen.
pub fn create(path: &Path) -> Result<()> {
    fs::create_dir_all(path).context(|| format!("cannot make the cgroup {}", path.display()))?;
    path.ancestors().take(2).for_each(|folder| removal::set_frozen(folder, false));
    Ok(())
}

/// Moves a process (0: the caller) into a cgroup.
pub fn join(path: &Path, pid: i32) -> Result<()> {
    let procs = path.join("cgroup.procs");
    fs::OpenOptions::new()
        .write(true)
        .open(&procs)
        .and_then(|mut file| file.write_all(pid.to_string().as_bytes()))
        .context(|| format!("cannot move process {pid} into the cgroup {}", path.display()))
}

/// How often processes are looked for that are forked while others are moved.
const ROUNDS: usize = 10;

/// Moves whoever is found into a cgroup, until nobody is. One that ends meanwhile is as good as moved: the kernel leaves it where it is,
/// for as long as its end takes.
pub fn join_all(path: &Path, found: impl Fn() -> Vec<i32>) -> Result<()> {
    let mut joined = HashSet::new();
    for _ in 0..ROUNDS {
        let mut all = found();
        if all.is_empty() {
            // the kernel's list of children skips one now and then where others end
            all = found();
        }
        all.retain(|pid| !joined.contains(pid));
        if all.is_empty() {
            return Ok(());
        }
        for pid in all {
            match join(path, pid) {
                Err(error) if !process::has_ended(pid) => return Err(error),
                _ => joined.insert(pid),
            };
        }
    }
    let what = format!("processes fork faster than they can be moved into the cgroup {}", path.display());
    Err(Error::new(ErrorKind::Other, what).remedy("stop them meanwhile (kill -STOP), or try again"))
}

/// Opens the folder, to attach programs to.
pub fn open(path: &Path) -> Result<OwnedFd> {
    File::open(path).map(OwnedFd::from).context(|| format!("cannot open the cgroup {}", path.display()))
}

/// Its id, by which the kernel side knows it: the inode of its folder.
pub fn id(path: &Path) -> Result<u64> {
    fs::metadata(path).map(|meta| meta.ino()).context(|| format!("no cgroup {}", path.display()))
}

/// The ids of a cgroup and of all below it.
pub fn ids(path: &Path) -> HashSet<u64> {
    let mut found: HashSet<u64> = id(path).into_iter().collect();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(ids(&entry.path()));
        }
    }
    found
}

/// Which of these cgroups are gone.
pub fn gone(mut ids: Vec<u64>) -> Result<Vec<u64>> {
    if ids.is_empty() {
        return Ok(ids);
    }
    let top = mount_point()?;
    let mount = open(&top)?;
    let is_there = |id: &u64| fief_bpf::cgroup::open(mount.as_fd(), *id).map(|found| found.is_some());
    if let Ok(there) = ids.iter().map(is_there).collect::<std::io::Result<Vec<bool>>>() {
        let mut there = there.into_iter();
        ids.retain(|_| !there.next().unwrap_or(true));
        return Ok(ids);
    }
    // who may not ask for a folder by its number looks for it
    let there = self::ids(&top);
    ids.retain(|id| !there.contains(id));
    Ok(ids)
}

/// The folders of these cgroups, those that are there.
pub fn folders(ids: &HashSet<u64>) -> Result<HashMap<u64, PathBuf>> {
    let mut found = HashMap::new();
    if ids.is_empty() {
        return Ok(found);
    }
    let top = mount_point()?;
    let mount = open(&top)?;
    let mut left = HashSet::new();
    for &id in ids {
        let named = match fief_bpf::cgroup::open(mount.as_fd(), id) {
            Ok(None) => continue,
            Ok(Some(folder)) => fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd())).ok(),
            Err(_) => None,
        };
        // the kernel's name for it leads elsewhere where the hierarchy is seen through another mount namespace
        match named.filter(|path| path.starts_with(&top) && self::id(path).is_ok_and(|there| there == id)) {
            Some(path) => drop(found.insert(id, path)),
            None => drop(left.insert(id)),
        }
    }
    walk(&top, &mut left, &mut found);
    Ok(found)
}

/// The folders of these ids, in one walk, which ends once all are found.
fn walk(below: &Path, wanted: &mut HashSet<u64>, found: &mut HashMap<u64, PathBuf>) {
    if wanted.is_empty() {
        return;
    }
    for child in children(below) {
        walk(&child, wanted, found);
        if let Some(id) = id(&child).ok().filter(|id| wanted.remove(id)) {
            found.insert(id, child);
        }
        if wanted.is_empty() {
            return;
        }
    }
}

/// Processes in it and below.
pub fn processes(path: &Path) -> Vec<i32> {
    let mut found: Vec<i32> = fs::read_to_string(path.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for child in children(path) {
        found.extend(processes(&child));
    }
    found
}

/// The cgroups right below.
pub fn children(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// The path in the unified hierarchy, of what /proc/PID/cgroup says. It is bytes: who makes a cgroup names it.
pub fn in_unified(text: &[u8]) -> Option<&[u8]> {
    text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))
}

/// The folder of a path of a hierarchy that is mounted at `top`.
pub fn below(top: &Path, path: &[u8]) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(path));
    top.join(path.strip_prefix("/").unwrap_or(path))
}

/// The cgroup a process is in.
pub fn of_process(pid: i32) -> Result<PathBuf> {
    let text = fs::read(format!("/proc/{pid}/cgroup")).context(|| format!("no process {pid}"))?;
    Ok(below(&mount_point()?, in_unified(&text).unwrap_or_default()))
}

/// Threads of a process.
pub fn threads(pid: i32) -> Vec<i32> {
    each_thread(pid).collect()
}

/// The same, read one after the other.
pub fn each_thread(pid: i32) -> impl Iterator<Item = i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes that a process has started or adopted, and not buried yet.
pub fn children_of_process(pid: i32) -> Vec<i32> {
    let of_thread = |tid| {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<i32>>()
    };
    threads(pid).into_iter().flat_map(of_thread).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::process::{Command, Stdio};

    use fief_testkit::{Cgroup, Feature, require};

    use super::*;

    /// A cgroup that is there, and a number that none has.
    fn there_and_not() -> (PathBuf, u64, u64) {
        let own = of_process(std::process::id().cast_signed()).expect("a cgroup");
        let id = id(&own).expect("its folder");
        (own, id, id + (1 << 40))
    }

    #[test]
    fn a_cgroup_is_known_by_its_number_while_it_is_there() {
        let (own, id, none) = there_and_not();
        assert_eq!(gone(vec![id, none]).expect("cgroup2"), [none]);
        assert_eq!(folders(&HashSet::from([id, none])).expect("cgroup2"), HashMap::from([(id, own)]));
    }

    #[test]
    fn who_may_not_ask_by_number_walks() {
        let (own, id, none) = there_and_not();
        let (mut wanted, mut found) = (HashSet::from([id, none]), HashMap::new());
        // the root is not below itself
        let top = mount_point().expect("cgroup2");
        walk(own.parent().filter(|above| above.starts_with(&top)).unwrap_or(&own), &mut wanted, &mut found);
        if own != top {
            assert_eq!(found, HashMap::from([(id, own)]));
        }
    }

    #[test]
    fn a_hierarchy_is_found_by_its_type_and_its_controllers() {
        let text = "25 20 0:22 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                    26 20 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct\n\
                    33 20 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let of = |controller: &str| {
            let is_it = |kind: &str, options: &str| kind == "cgroup" && options.split(',').any(|one| one == controller);
            place_of(text.as_bytes(), &is_it)
        };
        assert_eq!(of("cpu"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(of("memory"), None);
        assert_eq!(place_of(text.as_bytes(), &|kind, _| kind == "cgroup2"), Some("/sys/fs/cgroup/unified".into()));
    }

    /// Anybody mounts in a namespace of its own, which `ip netns exec` has, too.
    #[test]
    fn a_mount_whose_name_is_no_text_hides_no_hierarchy() {
        let table =
            b"61 20 0:44 / /tmp/\xff rw - tmpfs none rw\n33 20 0:30 / /my\\040cgroups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(place_of(table, &|kind, _| kind == "cgroup2"), Some("/my cgroups".into()));
    }

    #[test]
    fn a_cgroup_whose_name_is_no_text_hides_no_process() {
        if !require(Feature::Cgroup2) {
            return;
        }
        let cgroup = Cgroup::new("odd").expect("a cgroup");
        let odd = cgroup.path().join(OsStr::from_bytes(b"\xff"));
        fs::create_dir(&odd).expect("made");
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat starts");
        let pid = cat.id().cast_signed();
        join(&odd, pid).expect("it runs");
        let found = of_process(pid);
        drop(cat.stdin.take());
        cat.wait().expect("it ends");
        assert_eq!(found.expect("it runs"), odd);
    }

    #[test]
    fn who_ends_or_is_forked_while_others_are_moved_hinders_nobody() {
        if !require(Feature::Cgroup2) {
            return;
        }
        let [from, to] = ["from", "to"].map(|role| Cgroup::new(role).expect("a cgroup"));
        let mut ended = Command::new("true").spawn().expect("true starts");
        ended.wait().expect("it ends");
        let mut cats: Vec<_> = (0..2)
            .map(|_| Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat starts"))
            .collect();
        let pids: Vec<i32> = cats.iter().map(|cat| cat.id().cast_signed()).collect();
        let round = std::cell::Cell::new(0);
        // the second one is there when the first one has been moved
        let moved = join_all(to.path(), || {
            round.set(round.get() + 1);
            match round.get() {
                1 => vec![ended.id().cast_signed(), pids[0]],
                2 => vec![pids[1]],
                _ => Vec::new(),
            }
        });
        let mut there = processes(to.path());
        there.sort_unstable();
        let refused = join_all(&from.path().join("none"), || pids.clone());
        let more = RefCell::new(Vec::new());
        let without_end = join_all(from.path(), || {
            let cat = Command::new("cat").stdin(Stdio::piped()).spawn().expect("it starts");
            let pid = cat.id().cast_signed();
            more.borrow_mut().push(cat);
            vec![pid]
        });
        cats.append(&mut more.into_inner());
        cats.iter_mut().for_each(|cat| drop(cat.stdin.take()));
        cats.iter_mut().for_each(|cat| assert!(cat.wait().is_ok()));
        moved.expect("both");
        let mut both = pids.clone();
        both.sort_unstable();
        assert_eq!(there, both);
        assert_eq!(refused.expect_err("there is no such cgroup").kind(), ErrorKind::NotFound);
        assert!(without_end.expect_err("there are ever more").to_string().contains("fork faster"));
    }
}
