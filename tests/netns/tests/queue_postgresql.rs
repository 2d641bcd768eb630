// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PostgreSQL, a process for each connection: the turn of the better class goes first, and none is lost or doubled. By `fief run`, and
//! by `fief apply` and `manage` with either handshake.
//!
//! `FIEF_TEST_REQUESTS=100000` asks for more than the usual number.

#[path = "queue_programs/rig.rs"]
mod rig;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fief_testkit::{Family, Feature, Process, Topology, postgresql, require, run, wait_until};
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::{high, low};
use fief_tests_netns::{SOON, connect_from, requests, while_it_stands};
use nix::sys::signal::Signal;
use nix::unistd::{User, chown};
use rig::{By, EVERYWAY, Policy, policy};

const PORT: u16 = 5432;
/// Of the low class.
const WAITING: u8 = 6;

/// On one connection, one after the other, while others do the same.
fn turns() -> usize {
    requests(900).div_ceil(EVERYWAY.len() * usize::from(WAITING))
}

/// It refuses to run as root, and the kernel would keep its shared memory of System V for ever behind one that was killed.
struct PostgreSql {
    programs: PathBuf,
    account: User,
    folder: tempfile::TempDir,
}

impl PostgreSql {
    fn new() -> Self {
        let account =
            ["postgres", "nobody"].iter().find_map(|name| User::from_name(name).unwrap()).expect("an account");
        let folder = tempfile::Builder::new().prefix("ff-postgres-").tempdir().unwrap();
        chown(folder.path(), Some(account.uid), Some(account.gid)).unwrap();
        let own = Self { programs: postgresql().expect("it is required"), account, folder };
        let mut command = Command::new("unshare");
        command.args(own.words("initdb"));
        run(command.args(["--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8", "--username=tester"])).unwrap();
        std::fs::write(own.data().join("pg_hba.conf"), "host all all 0.0.0.0/0 trust\n").unwrap();
        own
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Of `unshare`, for one of its programs.
    fn words(&self, program: &str) -> Vec<String> {
        let (uid, gid) = (self.account.uid, self.account.gid);
        let account = format!("--ipc --wd=/ setpriv --reuid={uid} --regid={gid} --clear-groups --");
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let words = [path(&self.programs.join(program)), "-D".to_owned(), path(&self.data())];
        account.split(' ').map(str::to_owned).chain(words).collect()
    }

    /// The words that start it.
    fn start(&self) -> Vec<OsString> {
        let settings = [
            "listen_addresses=0.0.0.0",
            "unix_socket_directories=",
            "fsync=off",
            "shared_buffers=16MB",
            "autovacuum=off",
            "dynamic_shared_memory_type=mmap",
        ];
        let settings = settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting.to_owned()]);
        ["unshare".to_owned()].into_iter().chain(self.words("postgres")).chain(settings).map(OsString::from).collect()
    }
}

/// A client that knows as much of the protocol as is needed here.
struct Session(TcpStream);

impl Session {
    /// `None`: the server does not listen, or is not ready.
    fn open(topology: &Topology, from: IpAddr) -> Option<Self> {
        let server = Topology::server_address(Family::V4, PORT);
        let stream = connect_from(&topology.clients, (from, 0).into(), server).ok()?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut session = Self(stream);
        let words = [&[0, 3, 0, 0][..], b"user\0tester\0database\0postgres\0\0"].concat();
        session.send(None, &words).ok()?;
        session.rows().ok()?;
        Some(session)
    }

    fn send(&mut self, kind: Option<u8>, words: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(words.len() + 4).unwrap().to_be_bytes();
        let message: Vec<u8> = kind.into_iter().chain(length).chain(words.iter().copied()).collect();
        self.0.write_all(&message)
    }

    fn ask(&mut self, query: &str) {
        self.send(Some(b'Q'), format!("{query}\0").as_bytes()).unwrap();
    }

    /// The first column of each row of an answer, or what went wrong.
    fn rows(&mut self) -> Result<Vec<String>, String> {
        let (mut rows, mut wrong) = (Vec::new(), None);
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head).map_err(|error| format!("{wrong:?}, {error}"))?;
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
            let mut words = vec![0; length];
            self.0.read_exact(&mut words).map_err(|error| error.to_string())?;
            let text = |words: &[u8]| String::from_utf8_lossy(words).into_owned();
            match head[0] {
                // a number of columns and the length of the first
                b'D' => rows.push(text(&words[6..])),
                b'E' => wrong = Some(text(&words)),
                b'Z' => return wrong.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    fn query(&mut self, query: &str) -> Vec<String> {
        self.ask(query);
        self.rows().unwrap_or_else(|wrong| panic!("{query}: {wrong}"))
    }
}

fn came(name: &str) -> String {
    format!("INSERT INTO came (name) VALUES ('{name}')")
}

/// The first turn has begun when the high one comes, and all others wait.
fn goes_in_order(by: By, policy: &Policy, tester: &mut Session) {
    let low = |n| (low(n), format!("low-{n}"));
    let better = (high(1), "high".to_owned());
    let come: Vec<_> = (1..=WAITING).map(low).chain([better.clone()]).collect();
    let go: Vec<_> = [low(1), better].into_iter().chain((2..=WAITING).map(low)).map(|(_, name)| name).collect();
    let open = |(from, _): &(IpAddr, String)| Session::open(policy.topology(), *from).expect("it is ready");
    let mut sessions: Vec<_> = come.iter().map(open).collect();
    let wait_for = |waiting: u32, busy: u32| {
        let left = || (policy.queue().waiting, policy.queue().busy);
        wait_until(SOON, || left() == (waiting, busy)).unwrap_or_else(|_| panic!("{by:?}: {:?}", left()));
    };
    wait_for(0, 0);
    while_it_stands(&policy.topology().server, || {
        for (waiting, (session, (_, name))) in (0..).zip(sessions.iter_mut().zip(&come)) {
            session.ask(&came(name));
            wait_for(waiting, 1);
        }
    });
    sessions.iter_mut().for_each(|session| drop(session.rows().unwrap()));
    assert_eq!(tester.query("SELECT name FROM came ORDER BY number"), go, "{by:?}");
}

fn loses_and_doubles_nothing(by: By, topology: &Topology, tester: &mut Session) {
    tester.query("TRUNCATE came");
    let turns = turns();
    std::thread::scope(|scope| {
        for n in 1..=WAITING {
            let from = if n.is_multiple_of(2) { high(n) } else { low(n) };
            let mut session = Session::open(topology, from).expect("it is ready");
            scope.spawn(move || (0..turns).for_each(|turn| drop(session.query(&came(&format!("{n}-{turn}"))))));
        }
    });
    let all = usize::from(WAITING) * turns;
    let counted = tester.query("SELECT count(*) || ' of ' || count(DISTINCT name) FROM came");
    assert_eq!(counted, [format!("{all} of {all}")], "{by:?}");
}

fn postgresql_serves_the_turn_of_the_better_class_first_and_each_once(by: By) {
    if !(ready() && require(Feature::PostgreSql)) {
        return;
    }
    let server = PostgreSql::new();
    // a place does not run out while all the others come
    let text = policy(PORT, "{ in-service = 1, length = 200, wait = \"1m\", stale = \"30s\" }");
    let topology = Topology::new().unwrap();
    let (mut command, policy) = Policy::begin(by, &text, &server.start(), server.folder.path(), topology);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Process::start(command).unwrap();
    process.ask_first(SOON);
    policy.wait_in_force(&mut process);
    let mut tester = None;
    wait_until(SOON, || {
        tester = Session::open(policy.topology(), low(100));
        tester.is_some()
    })
    .unwrap_or_else(|_| panic!("{by:?}: {:?}", process.try_wait()));
    let mut tester = tester.expect("it waited for one");
    tester.query("DROP TABLE IF EXISTS came; CREATE TABLE came (number serial, name text)");
    goes_in_order(by, &policy, &mut tester);
    loses_and_doubles_nothing(by, policy.topology(), &mut tester);
    drop(tester);
    // without waiting for clients
    process.signal(Signal::SIGINT);
    process.stop(SOON).expect("it ends when it is asked to");
    policy.ends();
}

#[test]
fn postgresql_serves_the_turn_of_the_better_class_first_and_each_once_by_fief_run() {
    postgresql_serves_the_turn_of_the_better_class_first_and_each_once(By::Run);
}

#[test]
fn postgresql_serves_the_turn_of_the_better_class_first_and_each_once_where_fief_answers() {
    postgresql_serves_the_turn_of_the_better_class_first_and_each_once(By::Apply(Door::Own));
}

#[test]
fn postgresql_serves_the_turn_of_the_better_class_first_and_each_once_where_the_kernel_answers() {
    postgresql_serves_the_turn_of_the_better_class_first_and_each_once(By::Apply(Door::Kernel));
}
