// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What work on a labelled file is charged to: its bytes, the time of the kernel's writeback, and threads that follow.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use fief::{Container, Usage, current};
use fief_control::{Fief, Why};
use fief_testkit::wait_until;
use fief_tests_netns::{SOON, Setup, in_unit_of, spin};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

const POLICY: &str = "version = 1\nlabel-files = true\n[container.unit]\n";
const MEBI: u64 = 1 << 20;

/// Runs the test `name` again where files have labels, in threads that follow what they work on or not.
fn in_labelling_unit(name: &str, follow: bool, body: impl FnOnce()) {
    in_unit_of(name, &Setup { policy: POLICY, follow, ..Setup::default() }, body, |_| ());
}

/// A file on the disk that the build is on.
fn file() -> File {
    tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// `write_bytes` of this thread as /proc has it.
fn written() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap().parse().unwrap()
}

fn fill(mut file: &File, bytes: u64) {
    let part = vec![7; MEBI as usize];
    for _ in 0..bytes / MEBI {
        file.write_all(&part).unwrap();
    }
}

/// Writes it back and drops it from the page cache.
fn chill(file: &File) {
    file.sync_all().unwrap();
    posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}

fn read_all(mut file: &File) -> usize {
    file.rewind().unwrap();
    file.read_to_end(&mut Vec::new()).unwrap()
}

/// Everything that it has used; a reader sees open stints.
fn usage_of(path: &str) -> Usage {
    let snapshot = Fief::from_env().unwrap().snapshot().unwrap();
    snapshot.containers.iter().find(|c| c.path == path).unwrap().usage
}

#[test]
fn bytes_written_by_others_are_the_files_and_counted_once() {
    in_labelling_unit("bytes_written_by_others_are_the_files_and_counted_once", false, || {
        let (gold, writer) = (Container::create().unwrap(), Container::create().unwrap());
        let (labelled, plain) = (file(), file());
        let label = gold.assign_file(&labelled).unwrap();
        let _bound = writer.bind().unwrap();
        let before = written();
        fill(&labelled, 8 * MEBI);
        let by_kernel = written() - before;
        assert!(by_kernel >= 8 * MEBI, "{by_kernel}");
        assert_eq!(gold.usage().unwrap().disk_write_bytes, by_kernel);
        assert_eq!(writer.usage().unwrap().disk_write_bytes, 0);
        fill(&plain, 2 * MEBI);
        let by_writer = written() - before - by_kernel;
        assert!(by_writer >= 2 * MEBI);
        assert_eq!(writer.usage().unwrap().disk_write_bytes, by_writer);
        drop(label);
        fill(&labelled, MEBI);
        assert_eq!(gold.usage().unwrap().disk_write_bytes, by_kernel, "without a label they are the writer's");
        assert_eq!(writer.usage().unwrap().disk_write_bytes, written() - before - by_kernel);
    });
}

#[test]
fn bytes_written_by_strangers_are_the_files() {
    let name = "bytes_written_by_strangers_are_the_files";
    if fief_tests_netns::role().as_deref() == Some("label") {
        let path = std::env::var("FIEF_TEST_FILE").unwrap();
        let file = File::options().write(true).open(path).unwrap();
        let gold = Container::create().unwrap();
        gold.set_name("gold").unwrap();
        let _label = gold.assign_file(&file).unwrap();
        println!("labelled");
        // until the test has seen enough
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let setup = Setup { policy: POLICY, ..Setup::default() };
    let installation = fief_tests_netns::Installation::with(&setup);
    let shared = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut part = installation.part(Some(&installation.cgroup()), name, "label");
    part.env("FIEF_TEST_FILE", shared.path()).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut child = part.spawn().unwrap();
    let gold = || {
        let snapshot = installation.fief().snapshot().unwrap();
        snapshot.containers.iter().find(|c| c.path == "unit/gold" && c.files == 1).map(|c| c.usage.disk_write_bytes)
    };
    wait_until(SOON, || gold().is_some()).expect("it is labelled");
    let before = written();
    fill(shared.as_file(), 4 * MEBI);
    let by_kernel = written() - before;
    assert_eq!(gold(), Some(by_kernel));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_time_of_writeback_is_the_files() {
    in_labelling_unit("the_time_of_writeback_is_the_files", false, || {
        let gold = Container::create().unwrap();
        let file = file();
        let _label = gold.assign_file(&file).unwrap();
        assert_eq!(gold.usage().unwrap().thread_ns, usage_at_rest(&gold));
        let at_rest = usage_at_rest(&gold);
        // the flusher works in address spaces that may hide its events on some guests: a few rounds find one that does not
        wait_until(SOON * 2, || {
            fill(&file, 64 * MEBI);
            // SAFETY: no pointers are passed.
            assert_eq!(unsafe { libc::syncfs(file.as_raw_fd()) }, 0);
            (&file).rewind().unwrap();
            gold.usage().unwrap().thread_ns > at_rest + 1_000_000
        })
        .expect("64 MiB take more than a millisecond to write back");
        usage_at_rest(&gold);
        assert_eq!(gold.info().unwrap().handles, 2, "the worker has let go");
        let other = self::file();
        let mut more = 0;
        // its own inode may be written once more; a wrong charge comes with each round, as 16 MiB take a quarter of a
        // millisecond at least
        wait_until(SOON, || {
            let before = usage_at_rest(&gold);
            (&other).rewind().unwrap();
            fill(&other, 16 * MEBI);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::syncfs(other.as_raw_fd()) }, 0);
            spin(Duration::from_millis(50));
            more = gold.usage().unwrap().thread_ns - before;
            more < 100_000
        })
        .unwrap_or_else(|_| panic!("other files' writeback is not its: {more} ns"));
    });
}

#[test]
fn the_kernel_thread_that_writes_a_file_back_is_told() {
    in_labelling_unit("the_kernel_thread_that_writes_a_file_back_is_told", false, || {
        let fief = Fief::from_env().unwrap();
        let gold = Container::create().unwrap();
        gold.set_name("gold").unwrap();
        let file = file();
        let _label = gold.assign_file(&file).unwrap();
        let mut watch = fief.watch("unit/gold", SOON).unwrap();
        // as above, the flusher hides its events at times
        wait_until(SOON * 2, || {
            fill(&file, 64 * MEBI);
            // SAFETY: no pointers are passed.
            assert_eq!(unsafe { libc::syncfs(file.as_raw_fd()) }, 0);
            (&file).rewind().unwrap();
            let charges = watch.look(SOON).unwrap();
            let is_told = |source: &fief_control::ChargeSource| {
                source.why == Why::Writeback && source.thread.is_some() && source.ns > 0
            };
            charges.sources.iter().any(is_told)
        })
        .expect("64 MiB are written back");
    });
}

/// What it has used once nobody works for it.
fn usage_at_rest(container: &Container) -> u64 {
    wait_until(SOON, || container.info().unwrap().threads == 0).expect("no thread is bound to it");
    container.usage().unwrap().thread_ns
}

/// As where a policy without labels comes into force while a worker is in the midst of a file.
#[test]
fn a_worker_that_was_not_told_of_the_end_is_the_systems_again_once_it_has_no_work() {
    let name = "a_worker_that_was_not_told_of_the_end_is_the_systems_again_once_it_has_no_work";
    in_labelling_unit(name, false, || {
        let gold = Container::create().unwrap();
        let file = file();
        let _label = gold.assign_file(&file).unwrap();
        let programs = std::fs::read_dir(Fief::from_env().unwrap().pins().files()).unwrap().next().unwrap().unwrap();
        std::fs::remove_file(programs.path().join("write_ends")).unwrap();
        for _ in 0..4 {
            let before = gold.usage().unwrap().thread_ns;
            wait_until(SOON, || {
                (&file).rewind().unwrap();
                fill(&file, 16 * MEBI);
                // SAFETY: no pointers are passed.
                assert_eq!(unsafe { libc::syncfs(file.as_raw_fd()) }, 0);
                gold.usage().unwrap().thread_ns > before
            })
            .expect("workers write it back");
            usage_at_rest(&gold);
            assert_eq!(gold.info().unwrap().handles, 2, "this descriptor and the label");
        }
    });
}

#[test]
fn a_thread_that_follows_takes_the_container_of_the_file_it_reads() {
    in_labelling_unit("a_thread_that_follows_takes_the_container_of_the_file_it_reads", true, || {
        let (gold, silver) = (Container::create().unwrap(), Container::create().unwrap());
        let (first, second) = (file(), file());
        for file in [&first, &second] {
            fill(file, 4 * MEBI);
            chill(file);
        }
        let _labels = (gold.assign_file(&first).unwrap(), silver.assign_file(&second).unwrap());
        let mine = |container: &Container| current(container).unwrap().0 == container.info().unwrap().id;
        assert!(!mine(&gold));
        let of_home = usage_of("unit").disk_read_bytes;
        assert_eq!(read_all(&first), 4 << 20);
        assert!(mine(&gold));
        spin(Duration::from_millis(30));
        let cold = gold.usage().unwrap();
        assert!(cold.disk_read_bytes >= 4 * MEBI, "{cold:?}");
        assert!(cold.cpu_ns() >= 25_000_000, "{cold:?}");
        assert_eq!(silver.usage().unwrap().disk_read_bytes, 0);
        read_all(&second);
        assert!(mine(&silver));
        // now the page cache has it; the program's own pages may have to be read again, on a busy machine
        wait_until(SOON, || {
            let before = gold.usage().unwrap().disk_read_bytes;
            read_all(&first);
            assert!(mine(&gold));
            gold.usage().unwrap().disk_read_bytes == before
        })
        .expect("what the page cache has is not charged");
        let of_home = usage_of("unit").disk_read_bytes - of_home;
        assert!(of_home < MEBI, "what the program itself is loaded from, at most: {of_home}");
    });
}

#[test]
fn a_thread_that_follows_takes_the_container_of_the_file_it_writes_or_touches() {
    let name = "a_thread_that_follows_takes_the_container_of_the_file_it_writes_or_touches";
    in_labelling_unit(name, true, || {
        let (gold, silver) = (Container::create().unwrap(), Container::create().unwrap());
        let (written_to, mapped) = (file(), file());
        fill(&mapped, MEBI);
        chill(&mapped);
        let _labels = (gold.assign_file(&written_to).unwrap(), silver.assign_file(&mapped).unwrap());
        let mine = |container: &Container| current(container).unwrap().0 == container.info().unwrap().id;
        let before = written();
        fill(&written_to, 2 * MEBI);
        assert!(mine(&gold));
        assert_eq!(gold.usage().unwrap().disk_write_bytes, written() - before, "counted once");
        let length = std::num::NonZeroUsize::new(MEBI as usize).unwrap();
        let (read, shared) = (nix::sys::mman::ProtFlags::PROT_READ, nix::sys::mman::MapFlags::MAP_SHARED);
        // SAFETY: a fresh mapping of a file that keeps its length, read once.
        let byte = unsafe {
            let start = nix::sys::mman::mmap(None, length, read, shared, &mapped, 0).unwrap();
            start.cast::<u8>().add(500_000).read_volatile()
        };
        assert_eq!(byte, 7);
        assert!(mine(&silver));
    });
}

#[test]
fn a_thread_that_was_bound_by_a_call_or_follows_nothing_stays_where_it_is() {
    let name = "a_thread_that_was_bound_by_a_call_or_follows_nothing_stays_where_it_is";
    let read = |bound: bool| {
        let (gold, own) = (Container::create().unwrap(), Container::create().unwrap());
        let file = file();
        fill(&file, MEBI);
        chill(&file);
        let _label = gold.assign_file(&file).unwrap();
        let guard = bound.then(|| own.bind().unwrap());
        let before = current(&own).unwrap();
        read_all(&file);
        assert_eq!(current(&own).unwrap(), before);
        assert_eq!(gold.usage().unwrap().disk_read_bytes, 0);
        drop(guard);
    };
    if fief_tests_netns::inside() {
        return read(std::env::var_os("FIEF_TEST_BOUND").is_some());
    }
    for (follow, bound) in [(true, true), (false, false)] {
        let setup = Setup { policy: POLICY, follow, ..Setup::default() };
        let installation = fief_tests_netns::Installation::with(&setup);
        let mut part = installation.part(Some(&installation.cgroup()), name, "body");
        if bound {
            part.env("FIEF_TEST_BOUND", "1");
        }
        assert!(part.status().unwrap().success(), "follow {follow}");
    }
}

#[test]
fn a_thread_follows_no_file_out_of_its_home() {
    let name = "a_thread_follows_no_file_out_of_its_home";
    let policy = "version = 1\nlabel-files = true\n[container.unit]\n[container.other]\n";
    let reader = |path: &str| {
        let through = Container::create().unwrap();
        let before = current(&through).unwrap();
        read_all(&File::open(path).unwrap());
        assert_eq!(current(&through).unwrap(), before);
    };
    match fief_tests_netns::role().as_deref() {
        Some("reader") => return reader(&std::env::var("FIEF_TEST_FILE").unwrap()),
        Some("label") => {
            let path = std::env::var("FIEF_TEST_FILE").unwrap();
            let file = File::options().write(true).open(path).unwrap();
            let _label = fief::assign_file(&file).unwrap();
            let _ = std::io::stdin().read(&mut [0]);
            return;
        }
        _ => {}
    }
    let installation = fief_tests_netns::Installation::with(&Setup { policy, follow: true, ..Setup::default() });
    let elsewhere = fief_testkit::Cgroup::new("files").unwrap();
    installation.manage(elsewhere.path(), Some("other"), false);
    let shared = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fill(shared.as_file(), MEBI);
    let part = |cgroup: &std::path::Path, role: &str| {
        let mut part = installation.part(Some(cgroup), name, role);
        part.env("FIEF_TEST_FILE", shared.path()).stdin(std::process::Stdio::piped());
        part
    };
    let mut label = part(elsewhere.path(), "label").spawn().unwrap();
    let labelled = || {
        let snapshot = installation.fief().snapshot().unwrap();
        snapshot.containers.iter().any(|c| c.path == "other" && c.files == 1)
    };
    wait_until(SOON, labelled).expect("it is labelled");
    assert!(part(&installation.cgroup(), "reader").status().unwrap().success());
    drop(label.stdin.take());
    assert!(label.wait().unwrap().success());
}
