// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads hold what they are bound to and their home, until they let go or end, whoever bound them.

use std::process::{Command, Stdio};
use std::time::Duration;

use std::os::fd::AsFd;

use fief::{Container, ErrorKind, Rights, State};
use fief_bpf::abi;
use fief_bpf::admin::Admin;
use fief_bpf::process;
use fief_bpf::table::Table;
use fief_control::{ApplyOptions, Fief, LetGo};
use fief_testkit::{Process, wait_until};
use fief_tests_netns::{
    Door, Installation, SOON, Setup, all_end, cpu_ns_of, fork, in_unit, in_unit_with, record, role, spin, unnamed,
};

#[test]
fn an_exec_keeps_the_binding() {
    in_unit("an_exec_keeps_the_binding", || {
        let work = Container::create().unwrap();
        let id = work.info().unwrap().id;
        let mut child = {
            let _bound = work.bind().unwrap();
            Command::new("sh").args(["-c", "read x; exit 7"]).stdin(Stdio::piped()).spawn().unwrap()
        };
        drop(work);
        wait_until(SOON, || processes_of(id) == 1).unwrap();
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(7));
        all_end();
    });
}

/// As the threads were when they last left a CPU.
fn processes_of(id: u32) -> u64 {
    record(id).unwrap().members / abi::FIEF_MEMBER_PROCESS
}

#[test]
fn a_process_is_counted_once_when_another_thread_takes_its_leaders_place() {
    in_unit("a_process_is_counted_once_when_another_thread_takes_its_leaders_place", || {
        let work = Container::create().unwrap();
        let id = work.info().unwrap().id;
        let child = fork(|| {
            work.bind_thread().unwrap();
            let other = std::thread::spawn(|| {
                let error = std::os::unix::process::CommandExt::exec(Command::new("sleep").arg("60"));
                panic!("{error}");
            });
            let _ = other.join();
        });
        let name = format!("/proc/{}/comm", child.pid());
        wait_until(SOON, || std::fs::read_to_string(&name).unwrap().trim() == "sleep").unwrap();
        wait_until(SOON, || processes_of(id) == 1).unwrap();
        child.kill();
        wait_until(SOON, || record(id).unwrap().members == 0).unwrap();
        drop(work);
        all_end();
    });
}

/// The kernel renames the thread without a switch where the leader has ended before.
#[test]
fn a_binding_stays_when_its_thread_takes_the_place_of_an_ended_leader() {
    in_unit("a_binding_stays_when_its_thread_takes_the_place_of_an_ended_leader", || {
        let work = Container::create().unwrap();
        let id = work.info().unwrap().id;
        let children: Vec<_> = (0..10)
            .map(|_| {
                let work = &work;
                fork(move || {
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            let leader = || std::fs::read_to_string("/proc/self/stat").unwrap();
                            wait_until(SOON, || leader().contains(") Z ")).unwrap();
                            work.bind_thread().unwrap();
                            let error = std::os::unix::process::CommandExt::exec(Command::new("sleep").arg("60"));
                            panic!("{error}");
                        });
                        // SAFETY: ends this thread alone, whose stack stays.
                        unsafe { libc::syscall(libc::SYS_exit, 0) };
                    });
                })
            })
            .collect();
        let sleeps = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == "sleep";
        wait_until(SOON, || children.iter().all(|child| sleeps(child.pid()))).unwrap();
        wait_until(SOON, || processes_of(id) == 10).unwrap_or_else(|_| panic!("{} of 10 are bound", processes_of(id)));
        children.into_iter().for_each(|child| child.kill());
        wait_until(SOON, || record(id).unwrap().members == 0).unwrap();
        drop(work);
        all_end();
    });
}

#[test]
fn a_bound_process_that_is_killed_lets_go() {
    in_unit("a_bound_process_that_is_killed_lets_go", || {
        let ready = Door::new();
        let child = fork(|| {
            let outer = Container::create().unwrap();
            let inner = outer.child().unwrap();
            let _outer = outer.bind().unwrap();
            let _inner = inner.bind().unwrap();
            ready.open();
            nix::unistd::pause();
        });
        ready.pass();
        assert_eq!(unnamed(), 2);
        child.kill();
        all_end();
    });
}

#[test]
fn the_end_of_a_thread_ends_its_binding() {
    in_unit("the_end_of_a_thread_ends_its_binding", || {
        for _ in 0..200 {
            std::thread::spawn(|| {
                let container = Container::create().unwrap();
                container.bind_thread().unwrap();
            })
            .join()
            .unwrap();
        }
        all_end();
    });
}

#[test]
fn a_request_for_a_thread_that_ends_is_let_go() {
    in_unit("a_request_for_a_thread_that_ends_is_let_go", || {
        let container = Container::create().unwrap();
        for _ in 0..300 {
            let child = fork(|| ());
            // bound before, while or after it ends
            let _ = container.bind_other(child.pid());
            child.finish();
        }
        drop(container);
        all_end();
    });
}

#[test]
fn several_that_bind_one_thread_let_go_of_what_was_not_taken() {
    in_unit("several_that_bind_one_thread_let_go_of_what_was_not_taken", || {
        let target = fork(|| {
            loop {
                std::hint::spin_loop();
            }
        });
        let pid = target.pid();
        let requesters: Vec<_> = (0..3)
            .map(|_| {
                fork(move || {
                    let containers: Vec<_> = (0..4).map(|_| Container::create().unwrap()).collect();
                    for container in containers.iter().cycle().take(20_000) {
                        container.bind_other(pid).unwrap();
                    }
                })
            })
            .collect();
        for requester in requesters {
            requester.finish();
        }
        target.kill();
        all_end();
    });
}

#[test]
fn a_thread_that_leaves_guards_out_of_order_ends_at_home() {
    in_unit("a_thread_that_leaves_guards_out_of_order_ends_at_home", || {
        let watch = Container::create().unwrap();
        let home = fief::current(&watch).unwrap();
        let containers: Vec<_> = (0..6).map(|_| Container::create().unwrap()).collect();
        let mut guards: Vec<_> = containers.iter().map(|container| container.bind().unwrap()).collect();
        guards.swap(0, 5);
        guards.swap(2, 3);
        drop(guards);
        fief::unbind(&watch).unwrap();
        assert_eq!(fief::current(&watch).unwrap(), home);
        drop(containers);
        wait_until(SOON, || unnamed() == 1).unwrap();
    });
}

/// The kernel remembers three that are entered; what the fourth one restores by a descriptor allows no less than they did.
#[test]
fn a_fourth_guard_gives_the_thread_its_rights_back() {
    in_unit("a_fourth_guard_gives_the_thread_its_rights_back", || {
        let containers: Vec<_> = (0..4).map(|_| Container::create().unwrap()).collect();
        let third = containers[2].info().unwrap();
        {
            let _guards: Vec<_> = containers[..3].iter().map(|container| container.bind().unwrap()).collect();
            drop(Container::create().expect("the third one's rights"));
            drop(containers[3].bind().unwrap());
            let mut made = Container::create().expect("the third one's rights are back");
            assert_eq!(made.info().unwrap().parent, Some(third.id));
            made.renew().unwrap();
            containers[3].adopt().unwrap();
        }
        // nor does it take a right to read
        let usable = containers[2].duplicate().unwrap();
        usable.keep_rights(Rights::USE).unwrap();
        let _guards: Vec<_> =
            [&containers[0], &containers[1], &usable].map(|container| container.bind().unwrap()).into();
        drop(containers[3].bind().unwrap());
        assert_eq!(fief::current(&containers[0]).unwrap(), (third.id, third.generation));
        assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::Denied, "it has no more than before");
    });
}

#[test]
fn a_reset_scheduler_binding_changes_neither_binding_nor_charges() {
    in_unit("a_reset_scheduler_binding_changes_neither_binding_nor_charges", || {
        let (one, two) = (Container::create().unwrap(), Container::create().unwrap());
        let binding = one.bind().unwrap();
        drop(two.bind().unwrap());
        let bound = fief::current(&two).unwrap();
        let before = one.usage().unwrap().thread_ns;
        fief::reset_scheduler_binding(&two).unwrap();
        assert_eq!(fief::current(&two).unwrap(), bound);
        let info = one.info().unwrap();
        assert_eq!(bound, (info.id, info.generation));
        assert!(one.usage().unwrap().thread_ns > before);
        drop(binding);
    });
}

#[test]
fn threads_keep_a_home_that_the_policy_lets_go() {
    let other = "version = 1\n[container.other]\n";
    in_unit_with(
        "threads_keep_a_home_that_the_policy_lets_go",
        || {
            let home = fief::open_current().unwrap();
            let id = home.info().unwrap().id;
            let parsed = fief_policy::parse(other, "test.toml").unwrap();
            Fief::from_env()
                .unwrap()
                .apply(&parsed, other, &ApplyOptions { let_go: LetGo::All, ..ApplyOptions::default() })
                .unwrap();
            assert_eq!(home.info().unwrap().state, State::Alive);
            drop(home);
            // work here and in new threads is still the home's
            let before = cpu_ns_of("unit");
            std::thread::spawn(|| spin(Duration::from_millis(30))).join().unwrap();
            assert!(cpu_ns_of("unit") > before + 20_000_000);
            assert_eq!(record(id).unwrap().flags & abi::FIEF_CONTAINER_POLICY, 0);
            // children can be made below it
            let child = Container::create().unwrap();
            assert_eq!(child.info().unwrap().parent, Some(id));
        },
        |installation| {
            // whoever comes into the managed cgroup now is still not free of the unit
            installation.play("threads_keep_a_home_that_the_policy_lets_go_and_so_does_the_cgroup", "late");
        },
    );
}

/// The second half of the test above: it runs in a cgroup whose first processes are gone.
#[test]
fn threads_keep_a_home_that_the_policy_lets_go_and_so_does_the_cgroup() {
    if role().as_deref() == Some("late") {
        let container = Container::create().unwrap();
        let parent = container.info().unwrap().parent.unwrap();
        assert!(parent >= fief::abi::FIEF_FIRST_ID, "new processes of the unit are nobody's");
    }
}

#[test]
fn a_number_that_another_thread_has_by_now_places_nobody() {
    let installation = Installation::with(&Setup::default());
    let [meant, other] = [(); 2].map(|()| Process::start(sleeper()).unwrap());
    let unit =
        Table::open(installation.fief().pins()).unwrap().rows().find(|row| row.name() == "unit").unwrap().container;
    let admin = Admin::open(installation.fief().pins()).unwrap();
    let of = |process: &Process| {
        let open = process::open(process.pid().cast_signed()).unwrap();
        process::identity(open.as_fd()).unwrap()
    };
    let (tid, flags) = (other.pid().cast_signed(), abi::FIEF_TASK_MANAGED);
    // listed in the managed cgroup a moment ago, and of a process outside now
    assert_eq!(admin.place_task(tid, unit, flags).unwrap_err().kind(), fief_bpf::ErrorKind::NotFound);
    assert_eq!(admin.bind_task(tid, of(&meant), unit).unwrap_err().kind(), fief_bpf::ErrorKind::NotFound);
    assert_eq!(installation.fief().snapshot().unwrap().containers.iter().map(|c| c.threads).sum::<u32>(), 0);
    admin.bind_task(tid, of(&other), unit).unwrap();
}

fn sleeper() -> Command {
    let mut command = Command::new("sleep");
    command.arg("100");
    command
}
