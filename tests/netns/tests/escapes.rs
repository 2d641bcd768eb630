// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an unprivileged holder of containers may not do: reach other people's, or be charged elsewhere than below its
//! home.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use fief::{Container, ErrorKind, Options, Rights, Usage};
use fief_bpf::abi;
use fief_control::{ContainerView, Fief};
use fief_testkit::{
    Cgroup, Family, Feature, NetNs, Process, cgroup2_mount, read_until, require, require_if, run, wait_until,
};
use fief_tests_netns::front::{self, Door, Front, anywhere, plain};
use fief_tests_netns::{
    Installation, NOBODY, Ring, SOON, Setup, all_end, become_user, connect_once_served, fork, fresh_socket, in_unit,
    python_server, receive, record, role, send, set_option, spin, unnamed,
};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

/// Where the parts of a test meet.
fn meeting() -> PathBuf {
    std::env::temp_dir().join(format!("{}.meeting", Fief::from_env().unwrap().pins().scope()))
}

fn host() -> UnixStream {
    let listener = UnixListener::bind(meeting()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    std::fs::remove_file(meeting()).unwrap();
    stream
}

fn guest() -> UnixStream {
    let mut stream = None;
    wait_until(SOON, || {
        stream = UnixStream::connect(meeting()).ok();
        stream.is_some()
    })
    .unwrap();
    stream.unwrap()
}

/// Runs a test of two parts: `host` in the managed cgroup, `guest` in another one with the home `home`, or a stranger.
fn play_two(name: &str, setup: &Setup<'_>, home: Option<&str>) {
    let installation = Installation::with(setup);
    let other = home.map(|home| {
        let cgroup = Cgroup::new("guest").unwrap();
        installation.manage(cgroup.path(), Some(home), false);
        cgroup
    });
    let host = installation.start(Some(&installation.cgroup()), name, "host");
    let guest = installation.start(other.as_ref().map(Cgroup::path), name, "guest");
    let done = |process: Process| process.finish(Duration::from_secs(60)).unwrap().status.success();
    assert!(done(guest), "the guest failed");
    assert!(done(host), "the host failed");
}

fn wait_for(stream: &UnixStream) {
    let mut byte = [0];
    (&*stream).read_exact(&mut byte).unwrap();
}

fn tell(stream: &UnixStream) {
    (&*stream).write_all(b".").unwrap();
}

#[test]
fn an_accomplice_outside_does_not_lift_a_container_out_of_its_limits() {
    let name = "an_accomplice_outside_does_not_lift_a_container_out_of_its_limits";
    match role().as_deref() {
        Some("guest") => {
            let over = guest();
            become_user(NOBODY);
            let container = Container::from_fd(receive(&over)).unwrap();
            container.adopt().unwrap();
            let parent = container.info().unwrap().parent.unwrap();
            assert_ne!(parent, abi::FIEF_ROOT, "it stands beside the policy's containers");
            assert_eq!(container.set_share(1).unwrap_err().kind(), ErrorKind::Conflict);
            // what the machine's own work is charged to is not given away
            let fresh = receive(&over);
            set_option(&fresh, abi::FIEF_OPEN_BINDING, &[]).unwrap();
            send(&over, fresh);
            wait_for(&over);
        }
        Some(_) => {
            let over = host();
            send(&over, Container::create().unwrap());
            send(&over, fresh_socket());
            let root = Container::from_fd(receive(&over)).unwrap();
            assert_eq!(root.info().unwrap().id, abi::FIEF_ROOT);
            assert_eq!(root.bind_thread().unwrap_err().kind(), ErrorKind::Denied);
            tell(&over);
        }
        None => play_two(name, &Setup::default(), None),
    }
}

/// Rights of a descriptor of what the thread is bound to, where all are asked for.
fn opened_with_all_rights() -> Rights {
    let opened = fresh_socket();
    set_option(&opened, abi::FIEF_OPEN_BINDING, &abi::FIEF_RIGHTS_ALL.to_ne_bytes()).unwrap();
    Container::from_fd(opened).unwrap().info().unwrap().rights
}

#[test]
fn a_passed_descriptor_allows_what_its_rights_say() {
    let policy = "version = 1\n[container.unit]\n[container.other]\n";
    let name = "a_passed_descriptor_allows_what_its_rights_say";
    match role().as_deref() {
        Some("guest") => {
            let over = guest();
            become_user(NOBODY);
            let readable = Container::from_fd(receive(&over)).unwrap();
            assert_eq!(readable.bind_thread().unwrap_err().kind(), ErrorKind::Denied);
            assert_eq!(readable.adopt().unwrap_err().kind(), ErrorKind::Denied);
            let usable = Container::from_fd(receive(&over)).unwrap_err();
            assert_eq!(usable.kind(), ErrorKind::Denied, "without the right to read it is not even shown");
            let usable = Container::from_fd(receive(&over)).unwrap();
            let home = fief::current(&usable).unwrap();
            {
                let _bound = usable.bind().unwrap();
                assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::Denied);
                // the binding can be opened, with no more rights
                let again = fief::open_current().unwrap();
                assert!(!again.info().unwrap().rights.contains(Rights::CHILDREN));
                assert!(!again.info().unwrap().rights.contains(Rights::ADMINISTER));
                let copy = again.duplicate().unwrap();
                assert_eq!(copy.set_weight(9).unwrap_err().kind(), ErrorKind::Denied);
                assert_eq!(opened_with_all_rights(), Rights::USE | Rights::READ);
            }
            fief::unbind(&usable).unwrap();
            assert_eq!(fief::current(&usable).unwrap(), home);
            assert!(!opened_with_all_rights().contains(Rights::ADMINISTER), "home is the policy's");
            let short = set_option(fresh_socket(), abi::FIEF_OPEN_BINDING, &[15]);
            assert_eq!(short, Err(Errno::EINVAL));
            tell(&over);
        }
        Some(_) => {
            let over = host();
            let container = Container::create().unwrap();
            for rights in [Rights::READ, Rights::USE, Rights::USE | Rights::READ] {
                let copy = container.duplicate().unwrap();
                copy.keep_rights(rights).unwrap();
                send(&over, copy);
            }
            wait_for(&over);
        }
        None => play_two(name, &Setup { policy, ..Setup::default() }, Some("other")),
    }
}

#[test]
fn what_was_staged_gives_no_rights_back() {
    in_unit("what_was_staged_gives_no_rights_back", || {
        let again = || set_option(fresh_socket(), abi::FIEF_DUP, &[]);
        let container = Container::create().unwrap();
        let copy = container.duplicate().unwrap();
        assert_eq!(again(), Err(Errno::EINVAL), "a duplicate takes what was staged");
        set_option(&container, abi::FIEF_STAGE, &[]).unwrap();
        container.keep_rights(Rights::READ).unwrap();
        copy.keep_rights(Rights::READ).unwrap();
        assert_eq!(again(), Err(Errno::EINVAL), "nor does it outlive the rights");
    });
}

#[test]
fn another_thread_is_bound_only_by_who_may_signal_it_and_stands_above_it() {
    let policy = "version = 1\n[container.unit]\n[container.\"unit/below\"]\n[container.other]\n";
    let name = "another_thread_is_bound_only_by_who_may_signal_it_and_stands_above_it";
    match role().as_deref() {
        Some("guest") => {
            // root in a unit beside: may signal, and is not above
            let over = guest();
            let target = Container::from_fd(receive(&over)).unwrap();
            let pid = std::fs::read_to_string(meeting().with_extension("pid")).unwrap().parse().unwrap();
            let mine = Container::create().unwrap();
            assert_eq!(mine.bind_other(pid).unwrap_err().kind(), ErrorKind::Denied);
            assert_eq!(target.bind_other(pid).unwrap_err().kind(), ErrorKind::Denied);
            tell(&over);
        }
        Some(_) => {
            std::fs::write(meeting().with_extension("pid"), std::process::id().to_string()).unwrap();
            let over = host();
            let container = Container::create().unwrap();
            send(&over, &container);
            wait_for(&over);
            std::fs::remove_file(meeting().with_extension("pid")).unwrap();

            let id = container.info().unwrap().id;
            let roots = fork(|| {
                loop {
                    spin(Duration::from_millis(1));
                }
            });
            let users = fork(|| {
                become_user(NOBODY);
                loop {
                    spin(Duration::from_millis(1));
                }
            });
            fork(|| {
                become_user(NOBODY);
                assert_eq!(container.bind_other(roots.pid()).unwrap_err().kind(), ErrorKind::Denied);
                wait_until(SOON, || container.bind_other(users.pid()).is_ok()).unwrap();
                assert_eq!(container.bind_other(i32::MAX).unwrap_err().kind(), ErrorKind::NoThread);
                // all capabilities in a namespace of its own are none here
                unshare(CloneFlags::CLONE_NEWUSER).unwrap();
                assert_eq!(container.bind_other(roots.pid()).unwrap_err().kind(), ErrorKind::Denied);
            })
            .finish();
            wait_until(SOON, || record(id).unwrap().members / abi::FIEF_MEMBER_PROCESS == 1).unwrap();
            // root may, CAP_KILL
            container.bind_other(roots.pid()).unwrap();
            wait_until(SOON, || record(id).unwrap().members / abi::FIEF_MEMBER_PROCESS == 2).unwrap();
        }
        None => play_two(name, &Setup { policy, ..Setup::default() }, Some("other")),
    }
}

#[test]
fn descriptors_of_others_cannot_be_taken() {
    in_unit("descriptors_of_others_cannot_be_taken", || {
        let container = Container::create().unwrap();
        let (pid, fd) = (std::process::id() as i32, container.as_fd().as_raw_fd());
        fork(|| {
            drop(container);
            become_user(NOBODY);
            assert!(std::fs::File::open(format!("/proc/{pid}/fd/{fd}")).is_err());
            let process = fief_bpf::process::open(pid).unwrap();
            let taken = fief_bpf::process::take_fd(process.as_fd(), fd);
            assert_eq!(taken.unwrap_err().raw_os_error(), Some(libc::EPERM));
        })
        .finish();
    });
}

#[test]
fn a_worker_of_io_uring_does_its_creators_work() {
    // outside: what a body prints is seen only if it fails
    if !require_if("io_uring", Ring::new().is_some(), false) {
        return;
    }
    in_unit("a_worker_of_io_uring_does_its_creators_work", || {
        let mut ring = Ring::new().expect("there was one a moment ago");
        let container = Container::create().unwrap();
        let other = Container::create().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        {
            let _bound = container.bind().unwrap();
            assert_eq!(ring.write(file.as_fd(), &[7; 4096]), 4096);
            let threads = || container.info().unwrap().threads;
            // a thread counts once it leaves its CPU
            wait_until(SOON, || threads() >= 2)
                .unwrap_or_else(|_| panic!("its worker is not bound to it: {}", threads()));
            // a socket option by the worker binds the worker, never its creator
            let mine = fief::current(&container).unwrap();
            ring.set_option(other.as_fd(), abi::FIEF_SOL as i32, abi::FIEF_BIND as i32);
            assert_eq!(fief::current(&container).unwrap(), mine);
            ring.set_option(container.as_fd(), abi::FIEF_SOL as i32, abi::FIEF_UNBIND as i32);
            assert_eq!(fief::current(&container).unwrap(), mine);
        }
        // what the worker makes lies below the unit
        let fresh = fresh_socket();
        if ring.set_option(fresh.as_fd(), abi::FIEF_SOL as i32, abi::FIEF_CREATE as i32) == 0 {
            let made = Container::from_fd(fresh).unwrap();
            assert!(made.info().unwrap().depth >= 2);
        }
        std::io::Seek::rewind(&mut file).unwrap();
        drop(ring);
        drop((container, other));
        all_end();
    });
}

#[test]
fn a_move_to_another_cgroup_does_not_leave_the_home() {
    in_unit("a_move_to_another_cgroup_does_not_leave_the_home", || {
        let watch = Container::create().unwrap();
        let home = fief::current(&watch).unwrap();
        let elsewhere = Cgroup::new("elsewhere").unwrap();
        let child = fork(|| {
            elsewhere.add(std::process::id()).unwrap();
            assert_eq!(fief::current(&watch).unwrap(), home);
            fork(|| assert_eq!(fief::current(&watch).unwrap(), home)).finish();
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(fief::current(&watch).unwrap(), home)).join().unwrap();
            });
            // sockets made there have no hooks: nothing can be made, so nothing can escape
            assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::NotManaged);
        });
        child.finish();
        let born = clone_into(elsewhere.path(), || assert_eq!(fief::current(&watch).unwrap(), home));
        born.finish();
        assert!(cgroup2_mount().unwrap().exists());
    });
}

#[test]
fn a_child_that_a_stranger_clones_into_a_unit_has_the_units_home() {
    let name = "a_child_that_a_stranger_clones_into_a_unit_has_the_units_home";
    match role().as_deref() {
        Some(_) => {
            let unit = PathBuf::from(std::env::var("FF_UNIT").unwrap());
            clone_into(&unit, || {
                let container = Container::create().unwrap();
                assert_eq!(container.info().unwrap().depth, 2);
                assert_ne!(fief::current(&container).unwrap().0, abi::FIEF_ROOT);
            })
            .finish();
        }
        None => {
            let installation = Installation::with(&Setup::default());
            let mut part = installation.part(None, name, "stranger");
            part.env("FF_UNIT", installation.cgroup());
            let done = Process::start(part).unwrap().finish(SOON).unwrap();
            assert!(done.status.success());
        }
    }
}

/// A child born in a cgroup.
fn clone_into(cgroup: &std::path::Path, body: impl FnOnce()) -> fief_tests_netns::Child {
    fief_tests_netns::clone_into(std::fs::File::open(cgroup).unwrap(), body)
}

#[test]
fn values_that_are_too_short_or_out_of_range_are_refused() {
    in_unit("values_that_are_too_short_or_out_of_range_are_refused", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        for option in 0..64u32 {
            for length in [1usize, 3, 4, 7, 8, 15, 31, 32, 100] {
                for fill in [0u8, 1, 255] {
                    // a name is any bytes; the rest must not be taken by accident
                    let _ = set_option(&container, option, &vec![fill; length]);
                }
            }
        }
        let after = record(id).unwrap();
        assert_eq!(after.attributes[0].share_ppm, 0);
        assert!((1..=10_000).contains(&after.attributes[0].weight));
        for option in [abi::FIEF_CREATE, abi::FIEF_DUP, abi::FIEF_OPEN_BINDING] {
            assert!(set_option(&container, option, &[]).is_err(), "a descriptor became another container's");
        }
        assert_eq!(
            set_option(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), abi::FIEF_CREATE, &[]),
            Err(Errno::EINVAL)
        );
    });
}

/// A container of these flags and this weight, as a program without our library asks for it.
fn made(flags: u32, weight: u32) -> Result<OwnedFd, Errno> {
    let fresh = fresh_socket();
    set_option(&fresh, abi::FIEF_CREATE, &[flags.to_ne_bytes(), weight.to_ne_bytes()].concat()).map(|()| fresh)
}

#[test]
fn a_container_is_made_as_it_is_asked_for_or_not_at_all() {
    in_unit("a_container_is_made_as_it_is_asked_for_or_not_at_all", || {
        for (flags, weight) in [(0, 10_001), (0, u32::MAX), (2, 0), (u32::MAX, 100)] {
            assert_eq!(made(flags, weight).err(), Some(Errno::EINVAL), "{flags} {weight}");
        }
        let error = Options::new().weight(10_001).create().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().ends_with("; a weight is 1 to 10000"), "{error}");
        assert_eq!(unnamed(), 0);
        let most = Container::from_fd(made(abi::FIEF_CREATE_PASS_UP, 10_000).unwrap()).unwrap();
        assert_eq!(most.attributes().unwrap().weight, 10_000);
    });
}

/// A name that were cut would be that of another container that begins in the same way.
#[test]
fn a_name_that_does_not_fit_is_refused() {
    in_unit("a_name_that_does_not_fit_is_refused", || {
        let container = Container::create().unwrap();
        let longest = "a".repeat(31);
        container.set_name(&longest).unwrap();
        for length in [32, 33, 64, 4096] {
            let long = vec![b'a'; length];
            assert_eq!(set_option(&container, abi::FIEF_SET_NAME, &long), Err(Errno::EINVAL), "{length}");
        }
        for byte in [b'/', b'\n', 0x1b, 0x7f, 0x80, 0xff] {
            assert_eq!(
                set_option(&container, abi::FIEF_SET_NAME, &[b'a', byte, b'b']),
                Err(Errno::EINVAL),
                "{byte:#x}"
            );
        }
        for name in ["", "a/b", "a\0b", "\u{fc}", "a\u{7f}", &"a".repeat(32)] {
            let error = container.set_name(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
            assert!(error.to_string().contains("; a name has 1 to 31 bytes"), "{error}");
        }
        assert_eq!(container.info().unwrap().name, longest);
        // what stands behind the end of a string in its buffer is nobody's name
        let mut buffer = [b'b'; 64];
        buffer[3] = 0;
        set_option(&container, abi::FIEF_SET_NAME, &buffer).unwrap();
        assert_eq!(container.info().unwrap().name, "bbb");
    });
}

/// Clients of 10.1/16 are gold's, at every address.
const GOLDEN: &str = r#"
version = 1
[container.shop]
[container."shop/gold"]
[container.other]
[listener.web]
address = "0.0.0.0:8080"
classes = "shared"
[[listener.web.client]]
from = ["10.1.0.0/16"]
container = "shop/gold"
[[listener.web.client]]
from = ["any"]
container = "shop"
"#;
const SENT: usize = 4 << 20;

/// Listens where the policy's listener does, and is its own client, from an address of gold's. Whether it is told of clients that the
/// policy refused.
fn serve_oneself(elsewhere: bool) -> bool {
    if elsewhere {
        // root in a user namespace of its own: everybody can
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        for words in ["link set lo up", "addr add 10.1.0.1/32 dev lo"] {
            run(Command::new("ip").args(words.split(' '))).unwrap();
        }
    }
    let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
    let client = std::thread::spawn(|| {
        let mut stream = TcpStream::connect("10.1.0.1:8080").unwrap();
        assert_eq!(stream.local_addr().unwrap().ip().to_string(), "10.1.0.1");
        stream.write_all(&vec![7; SENT]).unwrap();
    });
    let mut received = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
    client.join().unwrap();
    assert_eq!(received.len(), SENT);
    let drops = fief::drops(&listener).unwrap();
    drops.last.is_some()
}

fn view(fief: &Fief, path: &str) -> ContainerView {
    fief.snapshot().unwrap().containers.into_iter().find(|container| container.path == path).unwrap()
}

/// What its packets and connections make of it.
fn received(usage: Usage) -> [u64; 5] {
    [usage.bytes_in, usage.bytes_out, usage.receive_ns, usage.syns_seen, usage.accepts]
}

#[test]
fn who_listens_at_an_address_of_the_policy_makes_nobody_elses_class_pay() {
    const TOLD: &str = "FIEF_TEST_TOLD";
    let name = "who_listens_at_an_address_of_the_policy_makes_nobody_elses_class_pay";
    if let Some(place) = role() {
        let told = serve_oneself(place == "elsewhere");
        assert_eq!(told, std::env::var_os(TOLD).is_some(), "told of gold's clients");
        return;
    }
    if !require(Feature::NetNs) {
        return;
    }
    let servers = NetNs::new("servers").unwrap();
    servers.ip("addr add 10.1.0.1/32 dev lo").unwrap();
    let installation = servers.run(|| Installation::new(GOLDEN, "shop")).unwrap();
    let guests = Cgroup::new("guests").unwrap();
    servers.run(|| installation.manage(guests.path(), Some("other"), false)).unwrap();
    let fief = installation.fief();
    // one of gold's clients was refused
    let gold = view(fief, "shop/gold");
    let mut refused = abi::fief_notice { time_ns: 1, count: 1, ..Default::default() };
    refused.verdict.container = abi::fief_ref { id: gold.id, generation: gold.generation };
    refused.verdict.reason = abi::FIEF_SYN_RATE as u8;
    let notices = fief.pins().open_map("last_notices").unwrap();
    for listener in 0..abi::FIEF_MAX_LISTENERS {
        fief_bpf::record::update(&notices, listener, &refused).unwrap();
    }
    let own = installation.cgroup();
    for (cgroup, place, payer, is_told) in [
        (guests.path(), "here", "other", false),
        (guests.path(), "elsewhere", "other", false),
        // a server whose home is above the classes
        (own.as_path(), "here", "shop/gold", true),
        (own.as_path(), "elsewhere", "shop/gold", false),
    ] {
        let before = ["shop/gold", "other"].map(|path| (path, view(fief, path).usage));
        let mut part = installation.part(Some(cgroup), name, place);
        servers.enter(&mut part);
        if is_told {
            part.env(TOLD, "1");
        }
        let done = Process::start(part).unwrap().finish(Duration::from_secs(60)).unwrap();
        assert!(done.status.success(), "the server failed, {place} for {payer}");
        for (path, before) in before {
            let (after, before) = (received(view(fief, path).usage), received(before));
            let more: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
            if path == payer {
                assert!(more[0] >= SENT as u64 && more[2] > 0 && more[4] == 1, "{place} for {payer}: {more:?}");
            } else {
                assert_eq!(more, [0; 5], "{place} for {payer}: {path} pays too");
            }
        }
    }
}

/// A request for this path, which is served.
fn ask(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
    let answer = format!("served {path}\n");
    assert!(read_until(stream, &answer).contains(&answer), "{path}");
}

/// A server of `web` and a client of it. Requests for gold are of `shop`, all others of `rest`.
fn gold_of_shop(door: Door, rest: &str) -> (Front, Process, TcpStream) {
    let policy = format!(
        r#"
[container.web]
[container.shop]
[container."{rest}"]
[listener.plain]
address = "[::]:80"
queue = false
[[listener.plain.client]]
from = ["any"]
container = "{rest}"
[[listener.plain.request]]
path = "/gold/*"
container = "shop"
"#
    );
    let front = Front::new(door, &policy);
    let server = front.python(&python_server("    do_GET = answer"));
    let stream = connect_once_served(&front.topology.clients, anywhere(Family::V4), plain(Family::V4));
    (front, server, stream)
}

/// The door rules the requests of each class, and the server's unit pays for them: the first one by its verdict, later ones as they pass.
#[test]
fn a_server_beside_the_classes_pays_for_what_the_door_lets_through_to_it() {
    if !(front::ready() && require(Feature::Python)) {
        return;
    }
    for door in Door::GUARDS {
        let (front, _server, mut stream) = gold_of_shop(door, "shop/rest");
        ["/first", "/gold/second", "/third"].into_iter().for_each(|path| ask(&mut stream, path));
        let fief = front.installation().fief();
        for class in ["shop", "shop/rest"] {
            let usage = view(fief, class).usage;
            let paid = (usage.bytes_in, usage.bytes_out, usage.receive_ns, usage.accepts);
            assert_eq!(paid, (0, 0, 0, 0), "{door:?}: {class}");
        }
        let web = view(fief, "web").usage;
        assert!(web.bytes_in > 0 && web.receive_ns > 0 && web.accepts >= 1, "{door:?}: {web:?}");
    }
}

/// Requests for gold are of a class beside the home of the server's unit, which pays for those.
#[test]
fn a_connection_counts_in_its_class_while_that_pays_for_it() {
    if !(front::ready() && require(Feature::Python)) {
        return;
    }
    for door in Door::GUARDS {
        let (front, _server, mut stream) = gold_of_shop(door, "web/rest");
        let counted = || ["web/rest", "shop"].map(|class| view(front.installation().fief(), class).sockets);
        for (path, counts) in [("/gold/first", 0), ("/second", 1), ("/gold/third", 0), ("/fourth", 1)] {
            ask(&mut stream, path);
            assert_eq!(counted(), [counts, 0], "{door:?}: {path}");
        }
        drop(stream);
        wait_until(SOON, || counted() == [0; 2]).unwrap_or_else(|_| panic!("{door:?}: {:?}", counted()));
    }
}
