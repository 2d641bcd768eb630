// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The label of a file: who may make it, how long it lives, which policies know it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::Path;

use fief::{Container, ErrorKind, FileLabel, assign_file};
use fief_bpf::{abi, record::Record};
use fief_control::{ApplyOptions, Fief};
use fief_testkit::wait_until;
use fief_tests_netns::{Door, SOON, Setup, fork, in_unit_of, kill_before, left, unnamed};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

const POLICY: &str = "version = 1\nlabel-files = true\n[container.unit]\n";
const WITHOUT: &str = "version = 1\n[container.unit]\n";
const SOMEBODY: u32 = 12_345;

/// Runs the test `name` again where files have labels.
fn in_labelling_unit(name: &str, body: impl FnOnce()) {
    in_unit_of(name, &Setup { policy: POLICY, ..Setup::default() }, body, |_| ());
}

/// A file on the disk that the build is on.
fn file() -> File {
    tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn become_somebody() {
    setgroups(&[]).unwrap();
    let (gid, uid) = (Gid::from_raw(SOMEBODY), Uid::from_raw(SOMEBODY));
    setresgid(gid, gid, gid).unwrap();
    setresuid(uid, uid, uid).unwrap();
}

#[track_caller]
fn refused(file: impl AsFd) -> ErrorKind {
    assign_file(file).expect_err("a label must be refused").kind()
}

/// Files labelled with a container, as `fief show` counts them.
fn files_of(id: u32) -> u32 {
    let snapshot = Fief::from_env().unwrap().snapshot().unwrap();
    snapshot.containers.iter().find(|c| c.id == id).map_or(0, |c| c.files)
}

fn apply(text: &str) -> Vec<String> {
    let parsed = fief_policy::parse(text, "test.toml").unwrap();
    Fief::from_env().unwrap().apply(&parsed, text, &ApplyOptions::default()).unwrap().notes
}

fn labelled_files() -> MapHandle {
    MapHandle::from_pinned_path(Fief::from_env().unwrap().pins().map("labelled_files")).unwrap()
}

#[test]
fn a_label_keeps_its_container_alive_and_ends_with_its_last_close() {
    in_labelling_unit("a_label_keeps_its_container_alive_and_ends_with_its_last_close", || {
        let file = file();
        let gold = Container::create().unwrap();
        let id = gold.info().unwrap().id;
        let label = gold.assign_file(&file).unwrap();
        assert_eq!((files_of(id), gold.info().unwrap().handles), (1, 2));
        drop(gold);
        assert_eq!(unnamed(), 1, "the label holds it");
        let passed: OwnedFd = label.as_fd().try_clone_to_owned().unwrap();
        drop(label);
        assert_eq!((unnamed(), files_of(id)), (1, 1), "it was passed on");
        assert_eq!(refused(&file), ErrorKind::Conflict);
        drop(passed);
        wait_until(SOON, || unnamed() == 0).unwrap_or_else(|_| panic!("left: {}", left()));
        assert_eq!(labelled_files().keys().count(), 0);
        drop(assign_file(&file).unwrap());
    });
}

#[test]
fn a_label_ends_with_a_process_that_is_killed() {
    in_labelling_unit("a_label_ends_with_a_process_that_is_killed", || {
        let file = file();
        let (ready, never) = (Door::new(), Door::new());
        let child = fork(|| {
            let gold = Container::create().unwrap();
            let _label = gold.assign_file(&file).unwrap();
            ready.open();
            never.pass();
        });
        ready.pass();
        assert_eq!(refused(&file), ErrorKind::Conflict);
        assert_eq!(unnamed(), 1);
        child.kill();
        wait_until(SOON, || unnamed() == 0).unwrap_or_else(|_| panic!("left: {}", left()));
        drop(assign_file(&file).unwrap());
    });
}

#[test]
fn a_file_has_one_label_however_it_was_opened() {
    in_labelling_unit("a_file_has_one_label_however_it_was_opened", || {
        let named = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let _label = assign_file(named.as_file()).unwrap();
        let again = OpenOptions::new().append(true).open(named.path()).unwrap();
        assert_eq!(refused(&again), ErrorKind::Conflict);
        let other = file();
        let _second = assign_file(&other).unwrap();
    });
}

#[test]
fn only_regular_files_with_a_disk_behind_them_have_labels() {
    in_labelling_unit("only_regular_files_with_a_disk_behind_them_have_labels", || {
        let (out, into) = nix::unistd::pipe().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let memory = nix::sys::memfd::memfd_create("fief", nix::sys::memfd::MFdFlags::empty()).unwrap();
        for no_file in [out.as_fd(), into.as_fd(), socket.as_fd(), memory.as_fd()] {
            assert_eq!(refused(no_file), ErrorKind::Invalid);
        }
        let folder = File::open(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let device = OpenOptions::new().write(true).open("/dev/null").unwrap();
        assert_eq!((refused(folder), refused(device)), (ErrorKind::Invalid, ErrorKind::Invalid));
        assert_eq!((unnamed(), labelled_files().keys().count()), (0, 0));
    });
}

#[test]
fn a_file_that_is_not_open_is_no_file() {
    in_labelling_unit("a_file_that_is_not_open_is_no_file", || {
        for number in [1_000_000i32, 999, -1] {
            let fresh = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            drop(fresh);
            // SAFETY: no pointers; then four bytes that outlive the call.
            let errno = unsafe {
                let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
                let (sol, option) = (abi::FIEF_SOL as i32, abi::FIEF_ASSIGN_FILE as i32);
                let set = libc::setsockopt(socket, sol, option, (&raw const number).cast(), 4);
                let errno = std::io::Error::last_os_error().raw_os_error();
                assert_eq!(set, -1);
                libc::close(socket);
                errno
            };
            assert_eq!(errno, Some(libc::EBADF), "{number}");
        }
    });
}

#[test]
fn the_label_is_no_container() {
    in_labelling_unit("the_label_is_no_container", || {
        let file = file();
        let label: OwnedFd = Container::create().unwrap().assign_file(&file).unwrap().into();
        assert_eq!(Container::from_fd(label).unwrap_err().kind(), ErrorKind::NotAContainer);
    });
}

#[test]
fn who_can_only_read_a_file_of_others_labels_it_not() {
    in_labelling_unit("who_can_only_read_a_file_of_others_labels_it_not", || {
        let shared = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        shared.as_file().set_permissions(PermissionsExt::from_mode(0o644)).unwrap();
        let open_for_writing = shared.as_file().try_clone().unwrap();
        let reads = File::open(shared.path()).unwrap();
        let own = file();
        fchown(&own, Some(SOMEBODY), None).unwrap();
        let own_to_read = File::open(Path::new("/proc/self/fd").join(raw(&own))).unwrap();
        fork(|| {
            become_somebody();
            assert_eq!(refused(&reads), ErrorKind::Denied);
            drop(assign_file(&open_for_writing).expect("open for writing"));
            drop(assign_file(&own_to_read).expect("the owner's"));
        })
        .finish();
        drop(assign_file(&reads).expect("root owns it"));
    });
}

fn raw(file: &File) -> String {
    std::os::fd::AsRawFd::as_raw_fd(file).to_string()
}

#[test]
fn a_user_has_a_quota_of_labels() {
    in_labelling_unit("a_user_has_a_quota_of_labels", || {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
        let files: Vec<_> = (0..=abi::FIEF_FILES_PER_USER).map(|_| file()).collect();
        fork(|| {
            become_somebody();
            let (last, others) = files.split_last().unwrap();
            let mut labels: Vec<FileLabel> = others.iter().map(|file| assign_file(file).unwrap()).collect();
            assert_eq!(refused(last), ErrorKind::Quota);
            labels.pop();
            drop(assign_file(last).expect("one was given back"));
        })
        .finish();
        assert_eq!(labelled_files().keys().count(), 0);
    });
}

#[test]
fn users_that_have_all_labels_leave_some_for_root() {
    in_labelling_unit("users_that_have_all_labels_leave_some_for_root", || {
        let of_users = abi::FIEF_MAX_FILES / 8 * 7;
        let users = MapHandle::from_pinned_path(Fief::from_env().unwrap().pins().map("file_users")).unwrap();
        let (all, most) = (0u32, [of_users - 1, of_users]);
        let count = |labels: u32| users.update(all.bytes(), labels.bytes(), MapFlags::ANY).unwrap();
        let counted = || users.lookup(all.bytes(), MapFlags::ANY).unwrap().unwrap();
        let (one, other) = (file(), file());
        // as if others had all but one
        count(most[0]);
        fork(|| {
            become_somebody();
            let last = assign_file(&one).expect("the last one of users");
            let error = assign_file(&other).unwrap_err();
            assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Full, Some(libc::ENFILE)));
            drop(last);
            drop(assign_file(&other).expect("one was given back"));
        })
        .finish();
        assert_eq!(counted(), most[0].bytes());
        count(most[1]);
        drop(assign_file(&one).expect("root has room"));
        assert_eq!(counted(), most[1].bytes());
    });
}

/// More than the table of users holds, each with a label that is given back: root too found no place then.
#[test]
fn users_who_gave_their_labels_back_keep_nobody_out() {
    in_labelling_unit("users_who_gave_their_labels_back_keep_nobody_out", || {
        let file = file();
        fork(|| {
            setgroups(&[]).unwrap();
            let root = Uid::from_raw(0);
            for uid in 1000..18_000 {
                setresuid(Uid::from_raw(uid), root, root).unwrap();
                drop(assign_file(&file).unwrap_or_else(|error| panic!("user {uid}: {error}")));
            }
            setresuid(root, root, root).unwrap();
            drop(assign_file(&file).unwrap());
        })
        .finish();
    });
}

#[test]
fn a_full_table_is_an_error_that_says_so() {
    in_labelling_unit("a_full_table_is_an_error_that_says_so", || {
        let table = labelled_files();
        let key = |inode| abi::fief_file_key { inode, device: u32::MAX, generation: 0 };
        for inode in 0..abi::FIEF_MAX_FILES {
            table.update(key(inode.into()).bytes(), abi::fief_file::default().bytes(), MapFlags::ANY).unwrap();
        }
        let file = file();
        let error = assign_file(&file).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Full, Some(libc::ENOSPC)));
        table.delete(key(7).bytes()).unwrap();
        drop(assign_file(&file).unwrap());
    });
}

#[test]
fn files_have_labels_only_under_a_policy_that_says_so() {
    let name = "files_have_labels_only_under_a_policy_that_says_so";
    let setup = Setup { policy: WITHOUT, ..Setup::default() };
    let body = || {
        let attached = || Fief::from_env().unwrap().pins().files().exists();
        let file = file();
        let error = assign_file(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotEnabled);
        assert!(error.to_string().contains("label-files"), "{error}");
        assert!(!attached(), "nobody pays for what nobody asked for");
        apply(POLICY);
        let gold = Container::create().unwrap();
        let id = gold.info().unwrap().id;
        let label = gold.assign_file(&file).unwrap();
        assert!(attached());
        apply(WITHOUT);
        assert!(!attached());
        assert_eq!(refused(&file), ErrorKind::NotEnabled);
        assert_eq!(files_of(id), 1, "what is labelled stays labelled, without effect");
        drop(label);
        assert_eq!(files_of(id), 0);
    };
    in_unit_of(name, &setup, body, |installation| {
        installation.fief().down().unwrap();
        assert!(!installation.fief().pins().files().exists());
    });
}

#[test]
fn a_killed_apply_leaves_files_as_the_old_policy_has_them_or_the_new() {
    let name = "a_killed_apply_leaves_files_as_the_old_policy_has_them_or_the_new";
    in_labelling_unit(name, || {
        let file = file();
        let gold = Container::create().unwrap();
        for (from, to) in [(WITHOUT, POLICY), (POLICY, WITHOUT)] {
            let mut step = 0;
            loop {
                apply(from);
                let killed = kill_before(step, || drop(apply(to)));
                let expected = |text: &str| text == POLICY;
                let before = gold.usage().unwrap().disk_write_bytes;
                match gold.assign_file(&file) {
                    // then writes are charged, once
                    Ok(_label) => {
                        (&file).write_all(&[1; 4096]).unwrap();
                        assert_eq!(gold.usage().unwrap().disk_write_bytes - before, 4096, "step {step}");
                        file.set_len(0).unwrap();
                    }
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NotEnabled, "step {step}"),
                }
                let enabled = gold.assign_file(&file).is_ok();
                assert!(enabled == expected(from) || enabled == expected(to));
                if !killed {
                    assert_eq!(enabled, expected(to));
                    break;
                }
                apply(from);
                assert_eq!(gold.assign_file(&file).is_ok(), expected(from), "step {step}");
                step += 7;
            }
            assert!(step > 13, "{step}");
        }
        let folders = || std::fs::read_dir(Fief::from_env().unwrap().pins().files()).map_or(0, Iterator::count);
        apply(POLICY);
        assert_eq!(folders(), 1);
    });
}

#[test]
fn labels_go_on_under_the_programs_of_another_version() {
    in_labelling_unit("labels_go_on_under_the_programs_of_another_version", || {
        let fief = Fief::from_env().unwrap();
        let gold = Container::create().unwrap();
        let mut file = file();
        let _label = gold.assign_file(&file).unwrap();
        // as another version would have left it
        let folder = fief.pins().files();
        let names = || -> Vec<String> {
            let entries = std::fs::read_dir(&folder).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let own = names().remove(0);
        let (build, instance) = own.split_once('-').unwrap();
        let other = format!("00000001-{instance}");
        std::fs::rename(folder.join(&own), folder.join(&other)).unwrap();
        fief.upgrade().unwrap();
        assert_eq!(names().len(), 1);
        assert!(names()[0].starts_with(build) && names()[0] != own, "{:?}", names());
        file.write_all(&[1; 8192]).unwrap();
        assert_eq!(gold.usage().unwrap().disk_write_bytes, 8192);
    });
}

#[test]
fn a_label_whose_close_nobody_told_is_removed_by_the_next_apply() {
    in_labelling_unit("a_label_whose_close_nobody_told_is_removed_by_the_next_apply", || {
        let fief = Fief::from_env().unwrap();
        let (lost, kept) = (file(), file());
        let gold = Container::create().unwrap();
        let id = gold.info().unwrap().id;
        let _kept = gold.assign_file(&kept).unwrap();
        let label = gold.assign_file(&lost).unwrap();
        for unit in std::fs::read_dir(fief.pins().units()).unwrap() {
            std::fs::remove_file(unit.unwrap().path().join("release_puts")).unwrap();
        }
        // the kernel takes a hook away some time after its last reference
        wait_until(SOON, || {
            let before = unnamed();
            drop(Container::create().unwrap());
            unnamed() > before
        })
        .expect("the hook goes");
        drop(label);
        assert_eq!(files_of(id), 2);
        let notes = apply(POLICY);
        assert!(notes.iter().any(|note| note.starts_with("1 labels of files")), "{notes:?}");
        assert_eq!((files_of(id), labelled_files().keys().count()), (1, 1));
        drop(assign_file(&lost).unwrap());
        assert_eq!(gold.info().unwrap().handles, 2, "this descriptor and the label that is kept");
    });
}
