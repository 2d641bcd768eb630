// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the servers of `fief run` and `fief exec` listen where the policy says, or take too long for it.
//!
//! The kernel tells nobody that a socket begins to listen, so it is asked for its listening sockets, ever less often, and no
//! longer than a few seconds.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fief_policy::{Listener, Serve};

use crate::Fief;
use crate::listening::{self, Listening};

/// So long a server may take before it is told that nobody listens.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_MS: u16 = 10;
const LAST_MS: u16 = 500;

#[derive(Debug)]
pub(super) struct Starting<'a> {
    fief: &'a Fief,
    pub(super) listeners: Vec<&'a Listener>,
    until: Instant,
    next_ms: u16,
}

impl<'a> Starting<'a> {
    pub(super) fn new(fief: &'a Fief, listeners: Vec<&'a Listener>) -> Self {
        Self { fief, listeners, until: Instant::now() + PATIENCE, next_ms: FIRST_MS }
    }

    /// How long to wait for the next look.
    pub(super) fn pause_ms(&mut self) -> u16 {
        let pause = self.next_ms;
        self.next_ms = (pause * 2).min(LAST_MS);
        pause
    }

    /// Whether each listener has its servers: there is nothing left to wait for.
    pub(super) fn are_served(&self) -> bool {
        let served = |sockets: Vec<Listening>| {
            let has_copies = self.listeners.iter().any(|listener| listener.serve == Serve::CopiesPerClass);
            let copies = if has_copies { self.fief.class_addresses().unwrap_or_default() } else { Vec::new() };
            all_served(&self.listeners, &sockets, &copies)
        };
        self.listeners.is_empty() || listening::find().is_ok_and(served)
    }

    /// Whether they had all the time that they may take.
    pub(super) fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Whether each listener that is for servers of this machine has one. `copies`: addresses of the policy and classes that hidden
/// sockets listen for.
fn all_served(listeners: &[&Listener], sockets: &[Listening], copies: &[(SocketAddr, u32)]) -> bool {
    let is_served = |listener: &Listener| match listener.serve {
        Serve::CopiesPerClass => {
            let classes = copies.iter().filter(|(address, _)| *address == listener.address).map(|(_, class)| class);
            let asked = listener.table().classes;
            let asked: BTreeSet<_> = asked.iter().map(|class| &class.container).collect();
            classes.collect::<BTreeSet<_>>().len() >= asked.len()
        }
        _ => listener.addresses().any(|address| sockets.iter().any(|socket| socket.serves(address))),
    };
    listeners.iter().copied().filter(|listener| !listener.forward).all(is_served)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Listening {
        let address = address.parse().expect("an address");
        Listening { address, multipath: false, cgroup: None, inode: 0, cookie: None }
    }

    #[test]
    fn servers_have_started_once_each_listener_has_a_socket() {
        let listener = |name: &str, more: &str| {
            format!("[listener.{name}]\n{more}\n[[listener.{name}.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n")
        };
        let text = [
            "version = 1\n[container.a]\n",
            &listener("one", "address = \"0.0.0.0:80-81\""),
            &listener("two", "address = \"10.0.0.1:90\""),
        ];
        let policy = fief_policy::parse(&text.concat(), "policy").unwrap_or_else(|errors| panic!("{errors}"));
        let listeners: Vec<_> = policy.listeners.iter().collect();
        assert!(!all_served(&listeners, &[], &[]));
        assert!(!all_served(&listeners, &[at("0.0.0.0:80"), at("10.0.0.2:90")], &[]));
        assert!(all_served(&listeners, &[at("0.0.0.0:81"), at("[::]:90")], &[]));
    }

    #[test]
    fn copies_have_started_once_each_class_has_one() {
        let text = "version = 1\n[container.a]\n[container.b]\n[listener.one]\naddress = \"0.0.0.0:80\"\ncopies = \"per-class\"\n\
                    [[listener.one.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"a\"\n\
                    [[listener.one.client]]\nfrom = [\"any\"]\ncontainer = \"b\"\n";
        let policy = fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        let listeners: Vec<_> = policy.listeners.iter().collect();
        let copy = |class| ("0.0.0.0:80".parse().expect("an address"), class);
        let hidden = [at("127.0.0.1:40000"), at("127.0.0.1:40001")];
        assert!(!all_served(&listeners, &hidden, &[copy(8)]));
        assert!(!all_served(&listeners, &hidden, &[copy(8), copy(8)]), "two sockets of one class");
        assert!(all_served(&listeners, &hidden, &[copy(8), copy(9)]));
    }

    #[test]
    fn looks_become_fewer() {
        let fief = Fief::with_scope("starting");
        let mut starting = Starting::new(&fief, Vec::new());
        let pauses: Vec<u16> = (0..8).map(|_| starting.pause_ms()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 500, 500]);
        assert!(starting.are_served(), "there is nobody to wait for");
    }
}
