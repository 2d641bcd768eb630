// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filtered listeners of an unprivileged server: several on one address, each with its clients and its container.

#[path = "steer/rig.rs"]
mod rig;

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

use fief::{Container, Filter, bind_filtered};
use fief_bpf::abi;
use fief_testkit::{Client, Family, Topology, wait_until};
use fief_tests_netns::{NOBODY, become_user, connect_from, set_option};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, SockaddrIn, bind, connect, listen, setsockopt, shutdown,
    socket, sockopt,
};
use rig::{Rig, Server, high, low, ready, robot};

const POLICY: &str = r#"
version = 1
[container.unit]
[listener.web]
address = "0.0.0.0:8080"
[[listener.web.client]]
from = ["any"]
container = "unit"
"#;

/// What the inner process does: filters with names, `!` for a complement; `left:` for one whose socket then connects and is closed,
/// `twice:` for one whose socket asks for another address before it is closed, `ended:` for one that listens no more, and goes on being
/// bound, `again:` for one that listens no more, and again after others have. `bound` is a socket with a filter for everybody that is bound
/// and never listens, `lo` one of the loopback.
const FILTERS: &str = "FIEF_TEST_FILTERS";

fn parse(text: &str) -> Filter {
    let (plain, complement) = text.strip_prefix('!').map_or((text, false), |rest| (rest, true));
    if plain == "any" {
        return Filter::any();
    }
    let (address, length) = plain.split_once('/').unwrap();
    let filter = Filter::network(address.parse().unwrap(), length.parse().unwrap()).unwrap();
    if complement { filter.complement() } else { filter }
}

/// Runs inside the unit, as nobody: listens with each filter in turn and says how that went, then serves for ever,
/// with the filter's number as its answer.
#[test]
fn inner_server() {
    let Ok(plan) = std::env::var(FILTERS) else { return };
    become_user(NOBODY);
    let (address, filters) = plan.split_once(' ').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let mut said = Vec::new();
    for (number, text) in filters.split(' ').enumerate() {
        let container = Container::create().unwrap();
        if let Some(text) = text.strip_prefix("left:") {
            leave(bind_filtered(address, parse(text), &container).unwrap());
            said.push("left".to_owned());
            continue;
        }
        if let Some(text) = text.strip_prefix("twice:") {
            let listener = bind_filtered(address, parse(text), &container).unwrap();
            let other = SockaddrIn::new(127, 0, 0, 1, 9555);
            said.push(format!("{:?}", bind(listener.as_raw_fd(), &other).unwrap_err()));
            continue;
        }
        if let Some(text) = text.strip_prefix("ended:") {
            let listener = bind_filtered(address, parse(text), &container).unwrap();
            shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
            std::mem::forget(listener);
            said.push("ended".to_owned());
            continue;
        }
        if let Some(text) = text.strip_prefix("again:") {
            let listener = bind_filtered(address, parse(text), &container).unwrap();
            shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
            // twice as many as are noted on an address: each place is taken over by one that leaves
            let other = |n| bind_filtered(address, parse(&format!("10.88.{n}.0/24")), &container).unwrap();
            drop((0..64).map(other).collect::<Vec<_>>());
            listen(&listener, Backlog::new(64).unwrap()).unwrap();
            said.push("again".to_owned());
            std::thread::spawn(move || serve(&listener, number, &container));
            continue;
        }
        if ["bound", "lo"].contains(&text) {
            said.push(bind_only(address, text == "lo").map_or_else(|error| format!("{error:?}"), |()| text.to_owned()));
            continue;
        }
        match bind_filtered(address, parse(text), &container) {
            Ok(listener) => {
                said.push("ok".to_owned());
                std::thread::spawn(move || serve(&listener, number, &container));
            }
            Err(error) => said.push(format!("{:?}", Errno::from_raw(error.raw_os_error().unwrap_or(0)))),
        }
    }
    // The test harness wrote "test inner_server ... " on the same line.
    println!("\n{}\nlistening", said.join(" "));
    std::thread::park();
}

/// It listens no longer, and is connected from the same address when it is closed.
fn leave(listener: TcpListener) {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
    let SocketAddr::V4(to) = other.local_addr().unwrap() else { panic!("IPv4") };
    connect(listener.as_raw_fd(), &SockaddrIn::from(to)).unwrap();
    drop(listener);
    drop(other);
}

/// A socket with a filter (`struct fief_filter`) for everybody, of the loopback or of every interface, that stays bound to the address.
fn bind_only(address: SocketAddr, loopback: bool) -> Result<(), Errno> {
    let SocketAddr::V4(address) = address else { panic!("IPv4") };
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    set_option(&fd, abi::FIEF_FILTER, &[0; 24]).unwrap();
    setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
    setsockopt(&fd, sockopt::ReusePort, &true).unwrap();
    if loopback {
        setsockopt(&fd, sockopt::BindToDevice, &"lo".into()).unwrap();
    }
    let bound = bind(fd.as_raw_fd(), &SockaddrIn::from(address));
    std::mem::forget(fd);
    bound
}

fn serve(listener: &TcpListener, number: usize, container: &Container) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let own = stream.local_addr().unwrap();
        // The connection is the filter's container's.
        let accepted = container.usage().unwrap().accepts;
        assert!(accepted > 0, "{accepted}");
        let ip = match own.ip() {
            IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
            v4 => v4,
        };
        write!(stream, "{number} {ip} {}", own.port()).unwrap();
    }
}

/// The inner server, and how each of its filters went.
fn start(rig: &Rig, plan: &str) -> (Server, Vec<String>) {
    let mut command = rig.command(&std::env::current_exe().unwrap().to_string_lossy());
    command.args(["inner_server", "--exact", "--nocapture", "--test-threads=1"]).env(FILTERS, plan);
    let (server, before) = Server::start_after(command);
    let said = before.last().unwrap().split(' ').map(str::to_owned).collect();
    (server, said)
}

/// Which filter's listener answers; none: refused.
fn ask(rig: &Rig, from: IpAddr, port: u16) -> Option<u32> {
    let family = if from.is_ipv4() { Family::V4 } else { Family::V6 };
    let server = Topology::server_address(family, port);
    match connect_from(&rig.topology.clients, (from, 0).into(), server) {
        Ok(stream) => Some(rig::Connection { stream }.answer().pid),
        Err(errno) => {
            assert_eq!(errno, Errno::ECONNREFUSED);
            None
        }
    }
}

#[test]
fn a_filter_and_its_complement_share_an_address() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (_server, said) = start(&rig, "0.0.0.0:9000 10.77.1.0/24 !10.77.1.0/24");
    assert_eq!(said, ["ok", "ok"]);
    assert_eq!(ask(&rig, high(1), 9000), Some(0));
    assert_eq!(ask(&rig, low(1), 9000), Some(1));
    assert_eq!(ask(&rig, robot(1), 9000), Some(1));

    // numbers go on over an upgrade: a new listener takes no other one's place (core.md C16)
    rig.installation.fief().upgrade().unwrap();
    let (_later, said) = start(&rig, "0.0.0.0:9001 left:10.77.4.0/24 left:10.77.5.0/24 10.77.1.0/24 !10.77.1.0/24");
    assert_eq!(said, ["left", "left", "ok", "ok"]);
    assert_eq!([high(1), low(1)].map(|from| ask(&rig, from, 9000)), [Some(0), Some(1)]);
    assert_eq!([high(1), low(1)].map(|from| ask(&rig, from, 9001)), [Some(2), Some(3)]);
}

#[test]
fn the_longest_prefix_wins() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (_server, said) = start(&rig, "0.0.0.0:9000 any 10.77.0.0/16 10.77.1.0/24 10.77.1.7/32");
    assert_eq!(said, ["ok"; 4]);
    assert_eq!(ask(&rig, "10.88.0.1".parse().unwrap(), 9000), Some(0));
    assert_eq!(ask(&rig, low(1), 9000), Some(1));
    assert_eq!(ask(&rig, high(1), 9000), Some(2));
    assert_eq!(ask(&rig, high(7), 9000), Some(3));
}

#[test]
fn both_families_are_told_apart_on_one_address() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (_server, said) = start(&rig, "[::]:9000 fd77::1:0/112 10.77.1.0/24 any");
    assert_eq!(said, ["ok"; 3]);
    assert_eq!(ask(&rig, Client::High.address(Family::V6, 1), 9000), Some(0));
    assert_eq!(ask(&rig, high(1), 9000), Some(1));
    assert_eq!(ask(&rig, Client::Low.address(Family::V6, 1), 9000), Some(2));
    assert_eq!(ask(&rig, low(1), 9000), Some(2));
}

#[test]
fn clients_that_no_filter_names_are_refused() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (_server, said) = start(&rig, "0.0.0.0:9000 10.77.1.0/24");
    assert_eq!(said, ["ok"]);
    assert_eq!(ask(&rig, high(1), 9000), Some(0));
    assert_eq!(ask(&rig, low(1), 9000), None);
}

#[test]
fn one_filter_has_one_listener_and_one_complement_stands_on_an_address() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (_server, said) = start(&rig, "0.0.0.0:9000 10.77.1.0/24 10.77.1.9/24 !10.77.1.0/24 !10.77.2.0/24");
    assert_eq!(said, ["ok", "EADDRINUSE", "ok", "EADDRINUSE"]);
}

#[test]
fn an_address_of_the_policy_is_the_policys() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    assert_eq!(start(&rig, "0.0.0.0:8080 any").1, ["EADDRINUSE"]);
    assert_eq!(start(&rig, "10.77.0.1:8080 any").1, ["EADDRINUSE"]);
}

#[test]
fn a_filter_gives_no_right_to_a_port() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    assert_eq!(start(&rig, "0.0.0.0:80 any").1, ["EACCES"]);
    // Somebody else's server stands there; its clients stay its own.
    let other = rig.topology.server.run(|| TcpListener::bind("0.0.0.0:9000")).unwrap().unwrap();
    assert_eq!(start(&rig, "0.0.0.0:9000 10.77.1.0/24").1, ["EADDRINUSE"]);
    let server = Topology::server_address(Family::V4, 9000);
    let stream = connect_from(&rig.topology.clients, (high(1), 0).into(), server).unwrap();
    assert_eq!(other.accept().unwrap().1, stream.local_addr().unwrap());
}

/// Sockets that may share an address (SO_REUSEADDR) can be bound to it as long as none listens, whoever's they are.
#[test]
fn who_does_not_listen_keeps_nobody_out() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    for (port, filters, said) in [(9000, "bound", "bound"), (9001, "ended:any", "ended")] {
        let (_server, went) = start(&rig, &format!("0.0.0.0:{port} {filters}"));
        assert_eq!(went, [said]);
        for other in ["0.0.0.0", "10.77.0.1"] {
            let other = rig.topology.server.run(|| TcpListener::bind((other, port))).unwrap().unwrap();
            let server = Topology::server_address(Family::V4, port);
            let stream = connect_from(&rig.topology.clients, (high(1), 0).into(), server).unwrap();
            assert_eq!(other.accept().unwrap().1, stream.local_addr().unwrap());
        }
    }
}

/// On one address of those that the others listen on, too.
#[test]
fn a_filter_of_a_socket_that_does_not_listen_names_nobody() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (_one, said) = start(&rig, "10.77.0.1:9000 ended:any");
    assert_eq!(said, ["ended"]);
    let (_server, said) = start(&rig, "0.0.0.0:9000 ended:10.77.1.0/24 10.77.2.0/24 ended:!10.77.3.0/24 10.77.0.0/16");
    assert_eq!(said, ["ended", "ok", "ended", "ok"]);
    assert_eq!([high(1), low(1), robot(1)].map(|from| ask(&rig, from, 9000)), [Some(3), Some(1), Some(3)]);
    // as long as somebody listens, whom no filter names is refused
    assert_eq!(ask(&rig, "10.88.0.1".parse().unwrap(), 9000), None);
}

#[test]
fn who_listens_again_refuses_whom_no_filter_names_as_before() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (_server, said) = start(&rig, "0.0.0.0:9000 again:10.77.1.0/24");
    assert_eq!(said, ["again"]);
    assert_eq!([high(1), low(1)].map(|from| ask(&rig, from, 9000)), [Some(0), None]);
}

/// Others could listen there on other interfaces.
#[test]
fn a_filter_is_for_every_interface() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    assert_eq!(start(&rig, "0.0.0.0:9000 lo bound").1, ["EINVAL", "bound"]);
}

#[test]
fn a_filter_goes_with_its_socket_whatever_that_has_become() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (_server, said) = start(&rig, "0.0.0.0:9000 left:10.77.1.0/24 10.77.1.0/24 any");
    assert_eq!(said, ["left", "ok", "ok"]);
    assert_eq!(ask(&rig, high(1), 9000), Some(1));
    assert_eq!(ask(&rig, low(1), 9000), Some(2));
}

/// The kernel refuses a second address too, but asks Fief first.
#[test]
fn a_socket_that_asks_for_another_address_leaves_nothing_at_its_own() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let plan = "0.0.0.0:9000 twice:10.77.1.0/24 twice:!10.77.1.0/24 10.77.1.0/24 !10.77.1.0/24";
    let (_server, said) = start(&rig, plan);
    assert_eq!(said, ["EINVAL", "EINVAL", "ok", "ok"]);
    assert_eq!([high(1), low(1)].map(|from| ask(&rig, from, 9000)), [Some(2), Some(3)]);
}

#[test]
fn a_killed_server_leaves_no_filter() {
    if !ready() {
        return;
    }
    let rig = Rig::with_home(POLICY, "unit");
    let (server, said) = start(&rig, "0.0.0.0:9000 10.77.1.0/24 !10.77.1.0/24");
    assert_eq!(said, ["ok", "ok"]);
    drop(server);
    wait_until(std::time::Duration::from_secs(10), || rig.registered().is_empty()).unwrap();
    let (_server, said) = start(&rig, "0.0.0.0:9000 10.77.1.0/24 !10.77.1.0/24");
    assert_eq!(said, ["ok", "ok"]);
    assert_eq!(ask(&rig, high(1), 9000), Some(0));
}
