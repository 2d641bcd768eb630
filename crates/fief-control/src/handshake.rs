// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who answers connection requests at guarded listeners, and whether the machine supports admission there.
//!
//! The front door's own cookies cost least, and a flood never gets past the interface. But they come before the firewall, which
//! then never sees the request. With the kernel's cookies (tcp_syncookies = 2: always) request and answer pass the firewall as
//! usual, and the front door only holds the first data. A feature that the machine lacks is reported, and its listener stays
//! open.

use fief_bpf::{Context, Result};
use fief_policy::{Handshake, Listener, Policy};

use crate::Fief;
use crate::firewall::{self, Firewall};
use crate::listening::{self, Listening};
use crate::namespace::Namespace;
use crate::sysctls::{COOKIES, LOOPBACK_QUEUES, ROUTES, TIMESTAMPS, WANTED, file, read};

const RECEIVE_MAX: &str = "net.core.rmem_max";
const TCP_RECEIVE: &str = "net.ipv4.tcp_rmem";

/// What to do where a sysctl of [`LOOPBACK_QUEUES`] cannot be set.
const NO_QUEUE_AT_LOOPBACK: &str = "without it the kernel drops what comes out of a queue at lo; set it to 1 by other means, leave lo out of \
     [front].interfaces, or write queue = false";

/// How the listeners of a policy are admitted on this machine.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The kernel answers for every listener.
    kernel: bool,
    /// No listener can be admitted.
    pub(crate) open: bool,
    /// Sockets that only the kernel can give a connection, for which it answers.
    multipath: Vec<Listening>,
    /// Sysctls that are set for it.
    pub(crate) sysctls: Vec<&'static str>,
    /// Sentences: whether the kernel or the front door answers, and why.
    pub(crate) answers: Vec<String>,
}

impl Plan {
    /// Whether the kernel answers connection requests to a listener.
    pub(crate) fn kernel_answers(&self, listener: &Listener) -> bool {
        self.kernel || multipath(&self.multipath, listener).is_some()
    }
}

/// The first of these sockets that serves a listener.
pub(crate) fn multipath<'a>(sockets: &'a [Listening], listener: &Listener) -> Option<&'a Listening> {
    sockets.iter().find(|socket| socket.multipath && listener.addresses().any(|address| socket.serves(address)))
}

impl Fief {
    /// Decides for this network namespace and prepares it; `notes` tells the operator what and why.
    pub(crate) fn prepare_handshake(
        &self,
        policy: &Policy,
        netns: &Namespace,
        notes: &mut Vec<String>,
    ) -> Result<Plan> {
        let admitted: Vec<_> = policy.listeners.iter().filter(|listener| listener.admit).collect();
        if admitted.is_empty() {
            return Ok(Plan::default());
        }
        notes.extend(admitted.iter().filter_map(|listener| server_first_note(listener)));
        // who only watches changes nothing of how connections are made
        let held: Vec<_> = admitted.into_iter().filter(|listener| !policy.watches(listener)).collect();
        if held.is_empty() {
            return Ok(Plan::default());
        }
        let (kernel, why) = choose(policy.front.handshake);
        let sockets = listening::find()
            .context(|| "cannot list the sockets that listen".into())
            .map_err(|e| e.remedy("load the kernel's module for it: modprobe tcp_diag"))?;
        let found: Vec<_> =
            held.iter().filter_map(|listener| Some((listener, multipath(&sockets, listener)?))).collect();
        let plan_multipath = policy.front.handshake == Handshake::Auto && !kernel;
        let mut sysctls: Vec<_> = ROUTES.into_iter().filter(|(name, _)| file(name).exists()).collect();
        if let Err(error) = self.set_sysctls(netns.known, &sysctls) {
            sysctls.clear();
            notes.push(format!(
                "answers of the front door go back where the requests come from, whatever routes say: {error}"
            ));
        }
        if policy.queues_at_loopback() {
            self.set_sysctls(netns.known, &LOOPBACK_QUEUES).map_err(|e| e.remedy(NO_QUEUE_AT_LOOPBACK))?;
            sysctls.extend(LOOPBACK_QUEUES);
            let names = LOOPBACK_QUEUES.map(|(name, _)| name).join(" and ");
            notes.push(format!("{names} are 1: without them the kernel drops what comes out of a queue at lo"));
        }
        if kernel || plan_multipath && !found.is_empty() {
            self.set_sysctls(netns.known, &WANTED)?;
            sysctls.extend(WANTED);
        }
        let mut answers = vec![match kernel {
            true => format!("the kernel answers connection requests ({} = 2): {why}", WANTED[0].0),
            false => format!("the front door answers connection requests itself: {why}"),
        }];
        notes.extend(answers.clone());
        let will_be = |name: &'static str| match sysctls.iter().find(|(set, _)| *set == name) {
            Some((_, value)) => Ok((*value).to_owned()),
            None => self.sysctl_without_us(netns.known, name),
        };
        let open = !kernel && will_be(COOKIES).is_ok_and(|value| value == "0");
        if open {
            notes.push(format!(
                "no connection is admitted, all are let through: {COOKIES} is 0, so the kernel takes no cookie; \
                 set it to 1 (sysctl -w {COOKIES}=1) and apply again"
            ));
        }
        notes.extend(if kernel { window_note() } else { timestamp_note(&will_be(TIMESTAMPS)) });
        for (listener, socket) in found.iter().filter(|_| !kernel) {
            let note = match plan_multipath {
                true => format!(
                    "the kernel answers connection requests to {} ({} = 2): {} is a multipath TCP socket, which takes no \
                     connection from others; its clients get plain TCP",
                    listener.name, WANTED[0].0, socket.address
                ),
                false => multipath_note(&listener.name, socket),
            };
            answers.push(note.clone());
            notes.push(note);
        }
        let multipath =
            if plan_multipath { found.iter().map(|(_, socket)| (*socket).clone()).collect() } else { Vec::new() };
        let sysctls = sysctls.into_iter().map(|(name, _)| name).collect();
        Ok(Plan { kernel, open, multipath, sysctls, answers })
    }
}

/// Where the front door answers and the kernel makes the connection.
pub(crate) fn multipath_note(listener: &str, socket: &Listening) -> String {
    format!(
        "connections to {listener} are not held until their first request, which is ruled on its way to the server: {} is a \
         multipath TCP socket, which takes no connection from others; let the kernel answer (front.handshake = \"auto\" or \
         \"kernel\"), or start the server without (Go: GODEBUG=multipathtcp=0)",
        socket.address
    )
}

/// A connection of two that wait for each other.
fn server_first_note(listener: &Listener) -> Option<String> {
    let ports = listener.address.port()..=listener.last_port;
    let first = fief_policy::SERVER_SPEAKS_FIRST.iter().filter(|(port, _)| ports.contains(port));
    let first: Vec<_> = first.map(|(port, protocol)| format!("port {port} ({protocol})")).collect();
    (!first.is_empty()).then(|| {
        format!(
            "connections to {} wait for their clients' first bytes; at {} the server usually speaks first, and then nobody does: \
             write queue = false, and remove `admit` and request rules, if so",
            listener.name,
            first.join(", ")
        )
    })
}

/// Without timestamps a cookie is what fits into a sequence number.
fn timestamp_note(timestamps: &Result<String>) -> Option<String> {
    let is_off = timestamps.as_ref().is_ok_and(|value| value == "0");
    is_off.then(|| {
        format!(
            "{TIMESTAMPS} is 0: cookies have 23 bits instead of 38, so while forged ACKs come in, clients that have not \
             connected before may have to try again; set it to 1 (sysctl -w {TIMESTAMPS}=1)"
        )
    })
}

/// The front door has to know the window scale that the kernel told, and cannot ask for the first of the two.
fn window_note() -> Option<String> {
    let most: u64 = read(RECEIVE_MAX).ok()?.parse().ok()?;
    let of_tcp = read(TCP_RECEIVE).ok()?;
    let of_tcp: u64 = of_tcp.split_whitespace().nth(2)?.parse().ok()?;
    (most > of_tcp).then(|| {
        format!(
            "{RECEIVE_MAX} ({most}) is above the third number of {TCP_RECEIVE} ({of_tcp}): clients of admitted \
             connections may be told windows that are too large, and send again what does not fit; make that number as \
             large"
        )
    })
}

/// Whether the kernel shall answer, and why.
pub(crate) fn choose(asked: Handshake) -> (bool, String) {
    match asked {
        Handshake::Own => (false, "the policy says so; a firewall sees no connection request".to_owned()),
        Handshake::Kernel => (true, "the policy says so".to_owned()),
        Handshake::Auto => match firewall::find() {
            Firewall::None => (false, "no firewall rule is in force here".to_owned()),
            Firewall::Rules(what) => (true, format!("{what} has rules, which must see them")),
            Firewall::Stateful(what) => (true, format!("{what} tracks connections from their request on")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_says_who_answers_is_obeyed() {
        assert!(choose(Handshake::Kernel).0);
        assert!(!choose(Handshake::Own).0);
    }
}
