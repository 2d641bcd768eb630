// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of containers: whoever holds one, and however that one ends, the container ends once, and nothing of what
//! it used is lost.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use fief::{Container, ErrorKind, Options, State};
use fief_control::Fief;
use fief_testkit::wait_until;
use fief_tests_netns::{
    Gate, SOON, Setup, fork, in_unit, in_unit_of, in_unit_with, inside, receive, record, role, send, spin, unnamed,
};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Waits until no container of an application is left.
fn all_end() {
    wait_until(SOON, || unnamed() == 0).unwrap_or_else(|_| panic!("left: {}", fief_tests_netns::left()));
}

fn option(fd: impl AsFd, option: u32) -> std::io::Result<()> {
    let level = fief::abi::FIEF_SOL as i32;
    // SAFETY: no value is passed.
    let err = unsafe {
        libc::setsockopt(std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd()), level, option as i32, std::ptr::null(), 0)
    };
    if err == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn a_forked_child_holds_what_it_inherited_until_it_is_killed() {
    in_unit("a_forked_child_holds_what_it_inherited_until_it_is_killed", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        let child = fork(|| {
            nix::unistd::pause();
        });
        drop(container);
        assert_eq!(record(id).unwrap().state, fief::abi::FIEF_ALIVE);
        child.kill();
        all_end();
    });
}

#[test]
fn an_exec_keeps_what_is_not_closed_on_exec() {
    in_unit("an_exec_keeps_what_is_not_closed_on_exec", || {
        let closed = Container::create().unwrap();
        let kept = Container::create().unwrap();
        fcntl(kept.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (closed_id, kept_id) = (closed.info().unwrap().id, kept.info().unwrap().id);
        drop(closed);
        drop(kept);
        wait_until(SOON, || record(closed_id).is_none()).unwrap();
        assert_eq!(record(kept_id).unwrap().state, fief::abi::FIEF_ALIVE);
        child.kill().unwrap();
        child.wait().unwrap();
        all_end();
    });
}

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
    record(id).unwrap().members / fief::abi::FIEF_MEMBER_PROCESS
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

#[test]
fn every_duplicate_must_be_closed() {
    in_unit("every_duplicate_must_be_closed", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        let same_file = container.as_fd().try_clone_to_owned().unwrap();
        let second = container.duplicate().unwrap();
        drop(container);
        assert!(record(id).is_some());
        drop(same_file);
        assert!(record(id).is_some());
        assert_eq!(second.info().unwrap().handles, 1);
        drop(second);
        all_end();
    });
}

#[test]
fn a_passed_descriptor_serves_and_holds() {
    in_unit("a_passed_descriptor_serves_and_holds", || {
        let (near, far) = UnixStream::pair().unwrap();
        let done = Gate::new();
        let child = fork(|| {
            let container = Container::from_fd(receive(&far)).unwrap();
            {
                let _bound = container.bind().unwrap();
                spin(Duration::from_millis(20));
            }
            assert!(container.usage().unwrap().cpu_ns() > 10_000_000);
            done.pass();
        });
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        send(&near, &container);
        drop(container);
        assert!(record(id).is_some());
        done.open();
        child.finish();
        all_end();
    });
}

#[test]
fn a_descriptor_in_flight_holds_until_both_ends_are_closed() {
    in_unit("a_descriptor_in_flight_holds_until_both_ends_are_closed", || {
        let (near, far) = UnixDatagram::pair().unwrap();
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        send(&near, &container);
        drop(container);
        drop(near);
        assert!(record(id).is_some());
        drop(far);
        all_end();
    });
}

#[test]
fn a_descriptor_in_a_circle_of_sockets_is_found() {
    in_unit("a_descriptor_in_a_circle_of_sockets_is_found", || {
        let (near, far) = UnixStream::pair().unwrap();
        let container = Container::create().unwrap();
        send(&near, &container);
        send(&near, &far);
        drop((container, near, far));
        // the kernel looks for circles when a socket is passed or closed
        wait_until(SOON, || {
            let (near, far) = UnixStream::pair().unwrap();
            send(&near, &far);
            drop((near, far));
            unnamed() == 0
        })
        .unwrap();
    });
}

#[test]
fn a_bound_process_that_is_killed_lets_go() {
    in_unit("a_bound_process_that_is_killed_lets_go", || {
        let ready = Gate::new();
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
fn a_labelled_socket_holds_its_container() {
    in_unit("a_labelled_socket_holds_its_container", || {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        container.assign(&socket).unwrap();
        drop(container);
        assert_eq!(record(id).unwrap().sockets, 1);
        drop(socket);
        all_end();
    });
}

#[test]
fn a_socket_that_is_never_accepted_is_not_counted_for_ever() {
    in_unit("a_socket_that_is_never_accepted_is_not_counted_for_ever", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        container.assign(&listener).unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let (mut accepted, _) = listener.accept().unwrap();
        // it counts once somebody receives from it
        connections.iter_mut().for_each(|connection| connection.write_all(b"x").unwrap());
        accepted.read_exact(&mut [0]).unwrap();
        assert_eq!(record(id).unwrap().sockets, 2);
        drop(listener);
        drop(connections);
        drop(accepted);
        wait_until(SOON, || record(id).unwrap().sockets == 0)
            .unwrap_or_else(|_| panic!("{} sockets", record(id).unwrap().sockets));
    });
}

#[test]
fn an_ended_parent_keeps_its_slot_until_its_last_descendant_ends() {
    in_unit("an_ended_parent_keeps_its_slot_until_its_last_descendant_ends", || {
        let top = Container::create().unwrap();
        let middle = top.child().unwrap();
        let leaf = middle.child().unwrap();
        let ids = [&top, &middle, &leaf].map(|container| container.info().unwrap().id);
        let states = || ids.map(|id| record(id).map(|record| record.state));
        let (alive, ended) = (Some(fief::abi::FIEF_ALIVE), Some(fief::abi::FIEF_ENDED));
        drop(middle);
        assert_eq!(states(), [alive, ended, alive]);
        assert_eq!(leaf.info().unwrap().state, State::Orphan);
        drop(top);
        assert_eq!(states(), [ended, ended, alive]);
        drop(leaf);
        assert_eq!(states(), [None, None, None]);
    });
}

#[test]
fn an_ended_sibling_frees_its_slot_while_the_others_live() {
    in_unit("an_ended_sibling_frees_its_slot_while_the_others_live", || {
        let parent = Container::create().unwrap();
        let first = parent.child().unwrap();
        let second = parent.child().unwrap();
        drop(parent);
        drop(first);
        assert_eq!(unnamed(), 2);
        drop(second);
        all_end();
    });
}

/// CPU time of a container and of the retired one, as the control plane reads it.
fn cpu_of(path: &str) -> u64 {
    let snapshot = Fief::from_env().snapshot().unwrap();
    snapshot.containers.iter().find(|c| c.path == path).map_or(0, |c| c.usage.cpu_ns())
}

#[test]
fn usage_goes_up_to_the_parent_if_so_flagged() {
    in_unit("usage_goes_up_to_the_parent_if_so_flagged", || {
        let parent = Container::create().unwrap();
        let child = {
            let _bound = parent.bind().unwrap();
            Options::new().pass_up(true).create().unwrap()
        };
        let before = parent.usage().unwrap().cpu_ns();
        let retired = cpu_of("retired");
        {
            let _bound = child.bind().unwrap();
            spin(Duration::from_millis(30));
        }
        let used = child.usage().unwrap().cpu_ns();
        assert!(used > 20_000_000);
        drop(child);
        let now = parent.usage().unwrap().cpu_ns();
        assert!((before + used..before + used + 5_000_000).contains(&now), "{before} + {used} != {now}");
        assert_eq!(cpu_of("retired"), retired);
    });
}

#[test]
fn usage_passes_an_ended_parent_to_the_nearest_living_one() {
    in_unit("usage_passes_an_ended_parent_to_the_nearest_living_one", || {
        let top = Container::create().unwrap();
        let middle = top.child().unwrap();
        let leaf = middle.child().unwrap();
        leaf.set_pass_up(true).unwrap();
        {
            let _bound = leaf.bind().unwrap();
            spin(Duration::from_millis(30));
        }
        let used = leaf.usage().unwrap().cpu_ns();
        drop(middle);
        drop(leaf);
        assert!(top.usage().unwrap().cpu_ns() >= used);
    });
}

#[test]
fn usage_that_is_not_passed_up_is_retired() {
    in_unit("usage_that_is_not_passed_up_is_retired", || {
        let before = cpu_of("retired");
        let container = Container::create().unwrap();
        {
            let _bound = container.bind().unwrap();
            spin(Duration::from_millis(30));
        }
        let used = container.usage().unwrap().cpu_ns();
        drop(container);
        // what a CPU still cached comes when its line is wanted
        wait_until(SOON, || cpu_of("retired") >= before + used).unwrap();
    });
}

#[test]
fn a_hundred_thousand_containers_leave_nothing() {
    in_unit("a_hundred_thousand_containers_leave_nothing", || {
        let before = unnamed();
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                fork(move || {
                    for round in 0..1000 {
                        // chains, fans, and bound ones
                        let top = Container::create().unwrap();
                        let mut held: Vec<_> = (0..20).map(|_| top.child().unwrap()).collect();
                        let below = held[round % 20].child().unwrap();
                        let _bound = below.bind().unwrap();
                        if (round + worker) % 2 == 0 {
                            held.reverse();
                        }
                        held.push(below.duplicate().unwrap());
                        drop(top);
                        for _ in 0..3 {
                            drop(Container::create().unwrap());
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.finish();
        }
        wait_until(SOON, || unnamed() == before).unwrap_or_else(|_| panic!("left: {}", fief_tests_netns::left()));
        // every slot can still be had, and once
        let size = 4096 - fief::abi::FIEF_FIRST_ID as usize - fief_tests_netns::in_use();
        let mut ids = std::collections::HashSet::new();
        let mut all = Vec::new();
        let full = loop {
            match Container::create() {
                Ok(container) => all.push(container),
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), ErrorKind::Full);
        ids.extend(all.iter().map(|container| container.info().unwrap().id));
        assert_eq!((all.len(), ids.len()), (size, size));
    });
}

#[test]
fn what_names_a_reused_slot_by_its_old_generation_is_stale() {
    let setup = Setup { containers: 64, ..Setup::default() };
    in_unit_of(
        "what_names_a_reused_slot_by_its_old_generation_is_stale",
        &setup,
        || {
            let old = Container::create().unwrap();
            let (id, generation) = old.info().map(|info| (info.id, info.generation)).unwrap();
            // a label that does not hold: the clone of a labelled listener's
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            old.assign(&listener).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            // a staged container is not held either
            option(&old, fief::abi::FIEF_STAGE).unwrap();
            drop(listener);
            drop(old);
            all_end();
            let new = loop {
                let container = Container::create().unwrap();
                if container.info().unwrap().id == id {
                    break container;
                }
            };
            assert_ne!(new.info().unwrap().generation, generation);

            let fresh = nix::sys::socket::socket(
                nix::sys::socket::AddressFamily::Inet,
                nix::sys::socket::SockType::Datagram,
                nix::sys::socket::SockFlag::SOCK_CLOEXEC,
                None,
            )
            .unwrap();
            let refused = option(&fresh, fief::abi::FIEF_DUP).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ESTALE));

            std::io::Write::write_all(&mut client, &[1; 5000]).unwrap();
            server.read_exact(&mut [0; 5000]).unwrap();
            std::io::Write::write_all(&mut server, b"answer").unwrap();
            let usage = new.usage().unwrap();
            assert_eq!((usage.packets_in, usage.packets_out, usage.receive_ns), (0, 0, 0), "{usage:?}");
            drop(server);
            assert_eq!(record(id).unwrap().sockets, 0);
            assert_eq!(new.info().unwrap().handles, 1);
        },
        |_| (),
    );
}

#[test]
fn a_descriptor_of_an_installation_that_is_gone_is_a_plain_socket() {
    let name = "a_descriptor_of_an_installation_that_is_gone_is_a_plain_socket";
    in_unit(name, || {
        let fief = Fief::from_env();
        let old = Container::create().unwrap();
        old.bind_thread().unwrap();
        let cgroup = cgroup_of_this();
        fief.down().unwrap();
        assert_eq!(old.usage().unwrap_err().kind(), ErrorKind::NotManaged);
        assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::NotManaged);

        let policy = fief_tests_netns::PLAIN_POLICY;
        let parsed = fief_policy::parse(policy, "test.toml").unwrap();
        fief.apply(&parsed, policy, &Default::default()).unwrap();
        let home = fief_control::ManageOptions { container: Some("unit".into()), follow: false };
        fief.manage(&fief_control::Target::Cgroup(cgroup), &home).unwrap();
        assert_eq!(old.usage().unwrap_err().kind(), ErrorKind::NotAContainer);
        assert_eq!(old.bind_thread().unwrap_err().kind(), ErrorKind::NotAContainer);
        let new = Container::create().unwrap();
        drop(old);
        assert_eq!(new.info().unwrap().handles, 1);
        drop(new);
        all_end();
    });
}

fn cgroup_of_this() -> std::path::PathBuf {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    fief_testkit::cgroup2_mount().unwrap().join(path.trim_start_matches('/'))
}

#[test]
fn a_descriptor_outlives_the_cgroup_that_it_was_made_in() {
    let name = "a_descriptor_outlives_the_cgroup_that_it_was_made_in";
    let path = |scope: &str| std::env::temp_dir().join(format!("{scope}.socket"));
    match role().as_deref() {
        Some("maker") => {
            let over = UnixStream::connect(path(Fief::from_env().pins().scope())).unwrap();
            send(&over, Container::create().unwrap());
        }
        Some(_) => {
            let socket = path(Fief::from_env().pins().scope());
            let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let (over, _) = listener.accept().unwrap();
            fs::remove_file(&socket).unwrap();
            let container = Container::from_fd(receive(&over)).unwrap();
            let id = container.info().unwrap().id;
            let other =
                fief_testkit::cgroup2_mount().unwrap().join(format!("ff-{}", std::env::var("FF_OTHER").unwrap()));
            // its maker has ended
            wait_until(SOON, || fs::remove_dir(&other).is_ok()).unwrap();
            {
                let _bound = container.bind().unwrap();
                spin(Duration::from_millis(10));
            }
            assert!(container.usage().unwrap().cpu_ns() > 5_000_000);
            drop(container);
            wait_until(SOON, || record(id).is_none()).unwrap();
        }
        None => {
            assert!(!inside());
            let installation = fief_tests_netns::Installation::with(&Setup::default());
            let other = format!("{}-other", installation.scope().trim_start_matches("ff-"));
            let folder = fief_testkit::cgroup2_mount().unwrap().join(format!("ff-{other}"));
            fs::create_dir(&folder).unwrap();
            installation.manage(&folder, Some("unit"), false);
            let mut keeper = installation.part(Some(&installation.cgroup()), name, "keeper");
            let keeper = fief_testkit::Process::start({
                keeper.env("FF_OTHER", &other);
                keeper
            })
            .unwrap();
            wait_until(SOON, || path(installation.scope()).exists()).unwrap();
            let maker = installation.start(Some(&folder), name, "maker");
            assert!(maker.finish(SOON).unwrap().status.success());
            assert!(keeper.finish(SOON).unwrap().status.success());
        }
    }
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
            Fief::from_env().apply(&parsed, other, &Default::default()).unwrap();
            assert_eq!(home.info().unwrap().state, State::Alive);
            drop(home);
            // work here and in new threads is still the home's
            let before = cpu_of("unit");
            std::thread::spawn(|| spin(Duration::from_millis(30))).join().unwrap();
            assert!(cpu_of("unit") > before + 20_000_000);
            assert_eq!(record(id).unwrap().flags & fief::abi::FIEF_CONTAINER_POLICY, 0);
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
