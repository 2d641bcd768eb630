// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What containers are charged, against what was really done.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use fief::{Container, Usage};
use fief_control::{Fief, Snapshot};
use fief_testkit::{
    Client, Family, Feature, NetNs, Process, Topology, TopologyOptions, require, require_if, wait_until,
};
use fief_tests_netns::{
    Door, Installation, SOON, Setup, connect_once_served, fork, in_unit, role, serve_in_turn, spin, steady_snapshot,
    two_classes,
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use nix::time::{ClockId, clock_gettime};

fn usage_of(snapshot: &Snapshot, path: &str) -> Usage {
    snapshot.containers.iter().find(|c| c.path == path).unwrap_or_else(|| panic!("no container {path}")).usage
}

fn total(snapshot: &Snapshot) -> u64 {
    snapshot.containers.iter().map(|c| c.usage.cpu_ns()).sum()
}

#[test]
fn all_containers_together_use_all_cpus_all_the_time() {
    in_unit("all_containers_together_use_all_cpus_all_the_time", || {
        let fief = Fief::from_env().unwrap();
        let work = || {
            let busy = Container::create().unwrap();
            let _bound = busy.bind().unwrap();
            spin(Duration::from_millis(100));
            for _ in 0..2000 {
                drop(busy.duplicate().unwrap());
            }
        };
        let helper = fork(|| (0..8).for_each(|_| work()));
        let mut errors: Vec<f64> = (0..8)
            .map(|_| {
                let before = steady_snapshot(&fief);
                spin(Duration::from_millis(300));
                work();
                let after = steady_snapshot(&fief);
                let wall = (after.taken_ns - before.taken_ns) * u64::from(after.cpus);
                let sum = total(&after) - total(&before);
                (sum as f64 / wall as f64 - 1.0).abs()
            })
            .collect();
        helper.finish();
        errors.sort_by(f64::total_cmp);
        eprintln!("{errors:.5?}");
        // the reader may have been preempted in two of them all the same
        assert!(errors[5] < 0.002 && errors[7] < 0.05, "{errors:?}");
    });
}

/// The kernel accounts a thread from its wake-up on, before it gets the CPU; some 25 us a time on the machine this was made on.
#[test]
fn a_thread_that_often_wakes_is_charged_what_the_kernel_accounts() {
    in_unit("a_thread_that_often_wakes_is_charged_what_the_kernel_accounts", || {
        let mut errors: Vec<f64> = (0..4)
            .map(|_| {
                let container = Container::create().unwrap();
                let bound = container.bind().unwrap();
                let before = thread_ns();
                for _ in 0..1000 {
                    spin(Duration::from_micros(100));
                    // waits for nothing: to be woken is what is charged
                    std::thread::sleep(Duration::from_micros(300));
                }
                let own = thread_ns() - before;
                let charged = container.usage().unwrap().thread_ns;
                drop(bound);
                (charged as f64 / own as f64 - 1.0).abs()
            })
            .collect();
        errors.sort_by(f64::total_cmp);
        eprintln!("{errors:.4?}");
        // interrupts that came upon the thread are in its own account; one of four may have had many
        assert!(errors[2] < 0.02, "{errors:?}");
    });
}

fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

#[test]
fn idle_and_the_systems_work_have_names() {
    in_unit("idle_and_the_systems_work_have_names", || {
        let fief = Fief::from_env().unwrap();
        let before = fief.snapshot().unwrap();
        let mut after = fief.snapshot().unwrap();
        wait_until(SOON, || {
            after = steady_snapshot(&fief);
            usage_of(&after, "idle").cpu_ns() > usage_of(&before, "idle").cpu_ns()
                && usage_of(&after, "system").cpu_ns() > usage_of(&before, "system").cpu_ns()
        })
        .unwrap();
        // kinds add up to the system container's time; what is charged between the two looks is not in both
        let kinds: u64 = after.system_kinds.iter().map(|(_, ns)| ns).sum();
        let system = usage_of(&after, "system").cpu_ns();
        assert!(kinds.abs_diff(system) < 20_000_000, "{kinds} {system}");
        assert!(after.system_kinds.iter().any(|(kind, ns)| *kind == "softirq_timer" && *ns > 0));
    });
}

/// A socket made inside a namespace and connected or bound there.
fn udp(namespace: &NetNs, address: IpAddr) -> UdpSocket {
    namespace.run(|| UdpSocket::bind((address, 0)).unwrap()).unwrap()
}

#[test]
fn datagrams_are_counted_one_by_one_in_both_families() {
    if !require(Feature::NetNs) {
        return;
    }
    in_unit("datagrams_are_counted_one_by_one_in_both_families", || {
        for threaded in [false, true] {
            let topology = Topology::with(TopologyOptions { threaded, ..TopologyOptions::default() }).unwrap();
            for (family, headers) in [(Family::V4, 28), (Family::V6, 48)] {
                let (server, client) = (Container::create().unwrap(), Container::create().unwrap());
                let near = udp(&topology.server, Topology::server_address(family, 0).ip());
                let far = udp(&topology.clients, Client::High.address(family, 1));
                server.assign(&near).unwrap();
                client.assign(&far).unwrap();
                let to = near.local_addr().unwrap();
                let mut room = [0; 2000];
                for n in 0..200u64 {
                    far.send_to(&vec![1; 100 + n as usize], to).unwrap();
                    near.recv_from(&mut room).unwrap();
                }
                let sent: u64 = (0..200).map(|n| 100 + n + headers).sum();
                let usage = server.usage().unwrap();
                assert_eq!((usage.packets_in, usage.bytes_in), (200, sent), "{family:?} {threaded}");
                assert!(usage.receive_ns > 0);
                let back = far.local_addr().unwrap();
                for _ in 0..50 {
                    near.send_to(&[1; 1000], back).unwrap();
                    far.recv_from(&mut room).unwrap();
                }
                let usage = server.usage().unwrap();
                assert_eq!((usage.packets_out, usage.bytes_out), (50, 50 * (1000 + headers)));
                let usage = client.usage().unwrap();
                assert_eq!((usage.packets_in, usage.packets_out), (50, 200));
            }
        }
    });
}

#[test]
fn a_stream_is_counted_by_segment_though_the_kernel_merges_them() {
    if !require(Feature::NetNs) {
        return;
    }
    in_unit("a_stream_is_counted_by_segment_though_the_kernel_merges_them", || {
        let topology = Topology::new().unwrap();
        for family in [Family::V4, Family::V6] {
            let server = Container::create().unwrap();
            let address = Topology::server_address(family, 0);
            let listener = topology.server.run(|| TcpListener::bind(address).unwrap()).unwrap();
            server.assign(&listener).unwrap();
            let to = listener.local_addr().unwrap();
            let mut client = topology.clients.run(|| TcpStream::connect(to).unwrap()).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            let reader = std::thread::spawn(move || {
                let mut bytes = Vec::new();
                accepted.read_to_end(&mut bytes).unwrap();
                bytes.len()
            });
            let payload = 2_000_000;
            client.write_all(&vec![7; payload]).unwrap();
            drop(client);
            assert_eq!(reader.join().unwrap(), payload);
            let usage = server.usage().unwrap();
            let segments = payload as u64 / 1448;
            assert!((segments..segments * 2).contains(&usage.packets_in), "{family:?} {usage:?}");
            // merged segments have one header, the rest is payload
            assert!((payload as u64..payload as u64 + segments * 80).contains(&usage.bytes_in), "{usage:?}");
            // on a busy machine a client may send it again, as nobody has run for the first yet
            let again = topology.clients.tcp_counter("RetransSegs").unwrap();
            assert!((1..=1 + again).contains(&usage.syns_seen) && usage.accepts == 1, "{again}: {usage:?}");
        }
    });
}

#[test]
fn strangers_cost_a_unit_nothing() {
    if !require(Feature::NetNs) {
        return;
    }
    let installation = Installation::with(&Setup::default());
    let topology = Topology::new().unwrap();
    let near = udp(&topology.server, Topology::server_address(Family::V4, 0).ip());
    let far = udp(&topology.clients, Client::Low.address(Family::V4, 1));
    for _ in 0..500 {
        far.send_to(&[1; 500], near.local_addr().unwrap()).unwrap();
        near.recv_from(&mut [0; 600]).unwrap();
    }
    spin(Duration::from_millis(30));
    let unit = usage_of(&installation.fief().snapshot().unwrap(), "unit");
    assert_eq!(unit, Usage::default());
}

/// `write_bytes` of this thread as /proc has it.
fn written() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap().parse().unwrap()
}

/// A file where this test is built.
fn file_of_the_build() -> std::fs::File {
    let folder = std::env::current_exe().unwrap();
    tempfile::tempfile_in(folder.parent().unwrap()).unwrap()
}

#[test]
fn written_bytes_are_the_writers() {
    // outside: what a body prints is seen only if it fails
    let before = written();
    let mut file = file_of_the_build();
    file.write_all(&[7; 4096]).and_then(|()| file.sync_all()).unwrap();
    if !require_if("disk", written() > before, false) {
        return;
    }
    in_unit("written_bytes_are_the_writers", || {
        let writer = Container::create().unwrap();
        let mut file = file_of_the_build();
        let before = written();
        {
            let _bound = writer.bind().unwrap();
            file.write_all(&vec![7; 8 << 20]).unwrap();
            file.sync_all().unwrap();
        }
        let usage = writer.usage().unwrap();
        let by_kernel = written() - before;
        assert!(usage.disk_write_bytes >= 8 << 20, "{usage:?}");
        assert_eq!(usage.disk_write_bytes, by_kernel);
    });
}

#[test]
fn page_faults_are_the_touchers() {
    in_unit("page_faults_are_the_touchers", || {
        const PAGES: usize = 1000;
        let length = std::num::NonZeroUsize::new(PAGES * 4096).unwrap();
        let toucher = Container::create().unwrap();
        let protection = nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE;
        let flags = nix::sys::mman::MapFlags::MAP_PRIVATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { nix::sys::mman::mmap_anonymous(None, length, protection, flags) }.unwrap();
        // SAFETY: the mapping is ours.
        unsafe { nix::sys::mman::madvise(at, length.get(), nix::sys::mman::MmapAdvise::MADV_NOHUGEPAGE) }.unwrap();
        {
            let _bound = toucher.bind().unwrap();
            for page in 0..PAGES {
                // SAFETY: inside the mapping.
                unsafe { at.cast::<u8>().add(page * 4096).write_volatile(1) };
            }
        }
        let usage = toucher.usage().unwrap();
        assert!((PAGES as u64..PAGES as u64 + 100).contains(&usage.minor_faults), "{usage:?}");
    });
}

#[test]
fn refused_connection_requests_are_seen_and_dropped() {
    in_unit("refused_connection_requests_are_seen_and_dropped", || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        fief_testkit::run(std::process::Command::new("ip").args(["link", "set", "lo", "up"])).unwrap();
        let container = Container::create().unwrap();
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(fd.as_raw_fd(), &SockaddrStorage::from("127.0.0.1:7777".parse::<SocketAddr>().unwrap())).unwrap();
        nix::sys::socket::listen(&fd, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
        container.assign(&fd).unwrap();
        let to = SockaddrStorage::from("127.0.0.1:7777".parse::<SocketAddr>().unwrap());
        let clients: Vec<_> = (0..20)
            .map(|_| {
                let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                let client = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
                let _ = connect(client.as_raw_fd(), &to);
                client
            })
            .collect();
        let usage = || container.usage().unwrap();
        wait_until(SOON, || usage().syns_seen >= 20 && usage().syns_dropped > 5)
            .unwrap_or_else(|_| panic!("{:?}", usage()));
        assert!(usage().syns_dropped <= usage().syns_seen);
        drop(clients);
    });
}

#[test]
fn user_and_system_time_are_told_apart() {
    in_unit("user_and_system_time_are_told_apart", || {
        let (user, system) = (Container::create().unwrap(), Container::create().unwrap());
        {
            let _bound = user.bind().unwrap();
            let mut sum = 0u64;
            let mut last = user.usage().unwrap().thread_ns;
            while last < 400_000_000 {
                for n in 0..2_000_000u64 {
                    sum = std::hint::black_box(sum.wrapping_add(n));
                }
                last = user.usage().unwrap().thread_ns;
            }
        }
        {
            let _bound = system.bind().unwrap();
            let mut zero = std::fs::File::open("/dev/zero").unwrap();
            let mut room = vec![0; 1 << 20];
            while system.usage().unwrap().thread_ns < 400_000_000 {
                zero.read_exact(&mut room).unwrap();
            }
        }
        let share = |container: &Container| {
            let (user, system) = container.usage().unwrap().user_system_ns();
            user as f64 / (user + system) as f64
        };
        assert!(share(&user) > 0.8, "{}", share(&user));
        assert!(share(&system) < 0.4, "{}", share(&system));
    });
}

#[test]
fn a_thread_under_softirq_is_not_charged_for_it() {
    if !require(Feature::NetNs) {
        return;
    }
    in_unit("a_thread_under_softirq_is_not_charged_for_it", || {
        let topology = Topology::with(TopologyOptions { threaded: false, ..TopologyOptions::default() }).unwrap();
        let (server, victim) = (Container::create().unwrap(), Container::create().unwrap());
        let near = udp(&topology.server, Topology::server_address(Family::V4, 0).ip());
        let far = udp(&topology.clients, Client::Low.address(Family::V4, 1));
        server.assign(&near).unwrap();
        let to = near.local_addr().unwrap();
        let done = Door::new();
        // the sender's own thread is interrupted by its packets' arrival on loopback-like links
        let sender = fork(|| {
            victim.bind_thread().unwrap();
            for _ in 0..20_000 {
                let _ = far.send_to(&[1; 200], to);
            }
            done.open();
        });
        done.pass();
        sender.finish();
        let usage = victim.usage().unwrap();
        assert_eq!(usage.receive_ns, 0, "{usage:?}");
        assert!(server.usage().unwrap().receive_ns > 0);
        // but for the call that assigned the socket
        assert!(server.usage().unwrap().thread_ns < 1_000_000);
    });
}

/// A request is how many milliseconds to work.
fn serve() {
    serve_in_turn(([0, 0, 0, 0], 8080).into(), |connection| {
        let mut cost = [0];
        let asks = matches!(connection.read(&mut cost), Ok(1));
        if asks {
            spin(Duration::from_millis(cost[0].into()));
            connection.write_all(&cost).unwrap();
        }
        asks
    });
}

#[test]
fn the_one_thread_of_a_server_is_charged_to_the_class_it_serves() {
    let name = "the_one_thread_of_a_server_is_charged_to_the_class_it_serves";
    if role().is_some() {
        serve();
        return;
    }
    if !require(Feature::NetNs) {
        return;
    }
    let topology = Topology::new().unwrap();
    let policy = two_classes("address = \"0.0.0.0:8080\"\nclasses = \"shared\"");
    let setup = Setup { policy: &policy, home: "shop", follow: true, ..Setup::default() };
    let installation = topology.server.run(|| Installation::with(&setup)).unwrap();
    let mut part = installation.part(Some(&installation.cgroup()), name, "server");
    topology.server.enter(&mut part);
    let _server = Process::start(part).unwrap();
    let [mut high, mut low] = [Client::High, Client::Low].map(|class| {
        let from = (class.address(Family::V4, 1), 0).into();
        connect_once_served(&topology.clients, from, Topology::server_address(Family::V4, 8080))
    });
    let before = installation.fief().snapshot().unwrap();
    // both are always there, so that one loop serves them in turn
    for _ in 0..60 {
        high.write_all(&[6]).unwrap();
        low.write_all(&[2]).unwrap();
        high.read_exact(&mut [0]).unwrap();
        low.read_exact(&mut [0]).unwrap();
    }
    let snapshot = installation.fief().snapshot().unwrap();
    let (high, low) = (usage_of(&snapshot, "shop/high"), usage_of(&snapshot, "shop/low"));
    let ratio = high.thread_ns as f64 / low.thread_ns as f64;
    assert!((2.4..3.6).contains(&ratio), "{ratio}: {high:?} {low:?}");
    assert!(high.thread_ns >= 300_000_000 && low.thread_ns >= 90_000_000, "{high:?} {low:?}");
    assert_eq!((high.accepts, low.accepts), (1, 1));
    assert!(usage_of(&snapshot, "shop").thread_ns - usage_of(&before, "shop").thread_ns < 100_000_000);
}
