// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server behind a door, its clients, and what the kernel side knows of their heads.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;

use fief_bpf::upgrade::program_id;
use fief_bpf::{abi, batch, record, table};
use fief_testkit::{Family, PlainServer, Topology, cpus, pin, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain};
use fief_tests_netns::rig::status_of;
use fief_tests_netns::{SOON, connect_from, now_ns};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::errno::Errno;

/// Where the length of a head and the number of its policy stand in the kernel side's record; its bytes are the last of that.
const LENGTH: Range<usize> = 8..12;
const EPOCH: Range<usize> = 16..20;
/// Longer heads are not kept.
pub const MOST: usize = 512;
/// More requests than it takes until a head is known.
pub const OFTEN: usize = 5;

/// A policy whose rules are these.
pub fn ruled(rules: &str) -> String {
    format!(
        "\n[overload]\nbusy = {{ drops = 900000 }}\noverloaded = {{ drops = 1000000 }}\nhold = \"1h\"\n\
         [container.web]\n[container.\"web/ten\"]\n[listener.plain]\naddress = \"[::]:80\"\nqueue = false\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n{rules}"
    )
}

/// The head of a request, with these lines at its end.
pub fn get(path: &str, lines: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n{lines}\r\n").into_bytes()
}

/// The same on a connection that stays, with so many bytes behind it.
pub fn post(path: &str, lines: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: server\r\n{lines}\r\n").into_bytes()
}

/// A server behind a door, whose packets this thread's CPU receives.
pub struct Stage {
    pub front: Front,
    pub server: PlainServer,
}

impl Stage {
    pub fn new(door: Door, policy: &str) -> Self {
        let front = Front::new(door, policy);
        let server = front.plain_server();
        pin(0, cpus()[0]).unwrap();
        Self { front, server }
    }

    /// What becomes of this request on a connection of its own, at this port.
    pub fn ask_at(&self, port: u16, request: &[u8]) -> Result<u16, Errno> {
        let server = Topology::server_address(Family::V4, port);
        let mut stream = connect_from(&self.front.topology.clients, anywhere(Family::V4), server)?;
        stream.write_all(request).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap()))?;
        status_of(stream)
    }

    pub fn ask(&self, request: &[u8]) -> Result<u16, Errno> {
        self.ask_at(80, request)
    }

    /// The map of what this installation's CPUs know; it has no pin.
    fn map(&self) -> MapHandle {
        let program = program_id(self.front.installation().fief().pins(), "ack_guards").unwrap();
        let mut found = None;
        // a program of others that goes in the meantime ends the walk
        wait_until(SOON, || {
            let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
            found = ProgInfoIter::with_query_opts(with_maps).find(|info| info.id == program);
            found.is_some()
        })
        .unwrap();
        let maps = found.unwrap().map_ids.into_iter().filter_map(|id| MapHandle::from_map_id(id).ok());
        maps.into_iter().find(|map| map.name() == "known_heads").expect("the program's map")
    }

    /// The heads that are known by the policy in force.
    pub fn known(&self) -> Vec<Vec<u8>> {
        let (map, epoch) = (self.map(), table::control(self.front.installation().fief().pins()).unwrap().epoch);
        let of = |value: &[u8], at: Range<usize>| u32::from_ne_bytes(value[at].try_into().unwrap());
        // the last place is for the one that is asked for
        let places = (0..map.max_entries() - 1).flat_map(|place| {
            map.lookup_percpu(&place.to_ne_bytes(), MapFlags::ANY).unwrap().expect("an array has them all")
        });
        let kept = places.filter(|value| of(value, EPOCH) == epoch && of(value, LENGTH) > 0);
        kept.map(|value| value[value.len() - MOST..][..of(&value, LENGTH) as usize].to_vec()).collect()
    }

    pub fn knows(&self, head: &[u8]) -> bool {
        self.known().iter().any(|known| known == head)
    }

    /// Asks until the head is known, and then some times more.
    pub fn learn(&self, head: &[u8], outcome: Result<u16, Errno>) {
        wait_until(SOON, || {
            assert_eq!(self.ask(head), outcome, "{:?}", self.front.verdicts());
            self.knows(head)
        })
        .unwrap_or_else(|_| panic!("not known: {}", String::from_utf8_lossy(head)));
        self.stays(head, outcome);
    }

    pub fn stays(&self, head: &[u8], outcome: Result<u16, Errno>) {
        for turn in 0..OFTEN {
            let what = String::from_utf8_lossy(head);
            assert_eq!(self.ask(head), outcome, "turn {turn}, {what}: {:?}", self.front.verdicts());
        }
    }

    /// Has the first listener's last look at its load found it busy just now, or never.
    pub fn set_busy(&self, is_busy: bool) {
        let pins = self.front.installation().fief().pins();
        let guards: Vec<(u32, abi::fief_guard)> = batch::entries(&pins.open_map("guards").unwrap()).unwrap();
        let index = guards[0].0 % abi::FIEF_MAX_LISTENERS;
        let loads = pins.open_map("loads").unwrap();
        let load: abi::fief_load = record::lookup(&loads, &index.to_ne_bytes()).unwrap().unwrap();
        let above_ns = [if is_busy { now_ns() } else { 0 }, 0];
        record::update(&loads, index, &abi::fief_load { above_ns, ..load }).unwrap();
        let level = if is_busy { "busy" } else { "always" };
        wait_until(SOON, || {
            // the level is looked at with a connection request
            let _ = self.ask(&get("/other", ""));
            self.front.level() == level
        })
        .unwrap_or_else(|_| panic!("{level}: {:?}", self.front.load()));
    }
}

/// A connection that stays.
pub struct Persistent {
    pub stream: BufReader<TcpStream>,
}

impl Persistent {
    pub fn open(stage: &Stage) -> Self {
        let stream = connect_from(&stage.front.topology.clients, anywhere(Family::V4), plain(Family::V4)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// The status of the answer; `None`: there is none.
    pub fn ask(&mut self, request: &[u8]) -> Option<u16> {
        self.stream.get_mut().write_all(request).ok()?;
        let (mut status, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if status.is_none() {
                status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        self.stream.read_exact(&mut vec![0; length]).ok()?;
        status
    }
}
