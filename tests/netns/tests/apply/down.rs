// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief down` leaves nothing, whoever holds containers, keeps forking or has put something where the installation has its files. The
//! next apply begins anew.

use std::collections::BTreeMap;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fief::Container;
use fief_bpf::abi;
use fief_control::{ManageOptions, Target};
use fief_testkit::{Cgroup, cgroup2_mount, wait_until};
use fief_tests_netns::{NOBODY, SOON, fork};
use libbpf_rs::{MapHandle, MapType};
use nix::mount::{MsFlags, mount, umount};
use nix::unistd::ForkResult;

use crate::bare::{Bare, NEW, OLD, weights};

#[test]
fn what_a_user_put_in_its_place_keeps_no_policy_out_and_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let folder = |place: &Path| {
        for folder in ["", "maps", "units"] {
            std::fs::create_dir(place.join(folder)).unwrap();
            chown(place.join(folder), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        symlink(outside.path(), place.join("units/leads")).unwrap();
        symlink(outside.path(), place.join("top")).unwrap();
    };
    let link = |place: &Path| {
        std::fs::create_dir_all(outside.path().join("maps")).unwrap();
        symlink(outside.path(), place).unwrap();
    };
    // where the next one is built, or removed
    let file_beside = |place: &Path| {
        let size = size_of::<libbpf_sys::bpf_map_create_opts>() as _;
        let options = libbpf_sys::bpf_map_create_opts { sz: size, ..Default::default() };
        let mut map = MapHandle::create(MapType::Array, Some("beside"), 4, 4, 1, &options).unwrap();
        map.pin(beside(place)).unwrap();
    };
    for put in [&folder as &dyn Fn(&Path), &link, &file_beside] {
        let bare = Bare::new();
        let place = Path::new("/sys/fs/bpf").join(bare.fief.pins().scope());
        put(&place);
        assert!(!bare.fief.installed());
        bare.down();
        put(&place);
        bare.apply(NEW).unwrap();
        assert_eq!(bare.in_force(), weights(NEW));
        bare.down();
        assert!(file.exists());
    }
}

/// A place of remains beside that of the pins.
fn beside(place: &Path) -> PathBuf {
    place.with_file_name(format!("{}~1", place.file_name().unwrap().display()))
}

#[test]
fn remains_that_cannot_be_removed_keep_nothing_else_up() {
    let bare = Bare::new();
    let scope = bare.fief.pins().scope();
    let [remains, run] = [beside(&Path::new("/sys/fs/bpf").join(scope)), Path::new("/run/fief").join(scope)];
    bare.apply(OLD).unwrap();
    std::fs::create_dir(&remains).unwrap();
    mount(None::<&str>, &remains, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let downs = [(); 2].map(|()| {
        let failed = bare.fief.down().err();
        let left = (bare.fief.installed(), run.exists());
        // of a down that was killed after it had removed the pins
        std::fs::create_dir_all(&run).unwrap();
        (failed.map(|e| e.kind()), left)
    });
    umount(&remains).unwrap();
    for (failed, left) in downs {
        assert_eq!(left, (false, false), "{failed:?}");
        assert!(failed.is_some(), "what is left is told");
    }
    bare.down();
}

#[test]
fn no_container_has_the_name_of_one_of_the_installation_before() {
    let bare = Bare::new();
    let names = || -> BTreeMap<u32, u32> {
        bare.apply(NEW).unwrap();
        let all = bare.fief.snapshot().unwrap().containers.into_iter().filter(|c| c.id >= abi::FIEF_FIRST_ID);
        let names = all.map(|c| (c.id, c.generation)).collect();
        bare.down();
        names
    };
    let [before, after] = [names(), names()];
    assert_eq!(before.len(), 3);
    // a record tells by it that everything has begun anew
    let fell = |id: &u32| (after[id].wrapping_sub(before[id]) as i32) < 0;
    assert!(before.keys().eq(after.keys()) && before.keys().all(fell), "{before:?} {after:?}");
}

/// Held by one test of this process at a time: by those whose children stay until nothing is left. A child has open what other tests have
/// open while it is forked, so that two of these would wait for each other.
fn no_other_has_children() -> MutexGuard<'static, ()> {
    static CHILDREN: Mutex<()> = Mutex::new(());
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn down_leaves_nothing_though_containers_are_held() {
    let _alone = no_other_has_children();
    let bare = Bare::new();
    bare.apply(OLD).unwrap();
    let cgroup = Cgroup::new("down").unwrap();
    let options = ManageOptions { container: Some("kept".into()), follow: false };
    bare.fief.manage(&Target::Cgroup(cgroup.path().to_owned()), &options).unwrap();
    let ready = fief_tests_netns::Door::new();
    let holder = fork(|| {
        cgroup.add(std::process::id()).unwrap();
        let container = Container::create().unwrap();
        container.bind_thread().unwrap();
        ready.open();
        nix::unistd::pause();
        drop(container);
    });
    ready.pass();
    let down = bare.fief.down().unwrap();
    assert_eq!((down.units, down.still_held), (1, 1));
    bare.assert_nothing_is_left();
    holder.kill();
}

/// Chains of processes in a cgroup, each of which forks the next one and ends, while a file is there. Returns when they have ended.
fn keep_forking(cgroup: &Path, file: &Path) {
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let chain = || {
        std::fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
        while file.exists() {
            // SAFETY: the child of a test has no other thread.
            match unsafe { nix::unistd::fork() } {
                Ok(ForkResult::Child) => {}
                _ => return,
            }
        }
    };
    (0..4).for_each(|_| std::mem::forget(fork(chain)));
    while nix::sys::wait::wait().is_ok() {}
}

#[test]
fn processes_that_keep_forking_keep_nothing_up_and_go_on() {
    let _alone = no_other_has_children();
    let bare = Bare::new();
    bare.apply(OLD).unwrap();
    let tenant = cgroup2_mount().unwrap().join("fief").join(bare.fief.pins().scope()).join("tenant");
    std::fs::create_dir_all(&tenant).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go-on");
    std::fs::write(&file, "").unwrap();
    let forking = fork(|| keep_forking(&tenant, &file));
    let has_some = || !std::fs::read_to_string(tenant.join("cgroup.procs")).unwrap().is_empty();
    wait_until(SOON, has_some).unwrap();
    bare.down();
    assert!(!forking.has_ended());
    std::fs::remove_file(&file).unwrap();
    wait_until(SOON, || forking.has_ended()).expect("nobody is left frozen");
    forking.finish();
}
