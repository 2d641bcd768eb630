// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who answers connection requests at guarded listeners, and whether the machine supports admission there.
//!
//! The front door's own cookies cost least, and a flood never gets past the interface. But they come before the firewall, which
//! then never sees the request. With the kernel's cookies (tcp_syncookies = 2: always) request and answer pass the firewall as
//! usual, and the front door only holds the first data. A feature that the machine lacks is reported, and its listener stays
//! open.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use fief_bpf::{Context, Result};
use fief_policy::{Handshake, Listener, Mode, Policy};

use crate::Fief;
use crate::firewall::{self, Firewall};
use crate::listening::{self, Listening};
use crate::namespace::{self, Namespace};

pub(crate) const COOKIES: &str = "net.ipv4.tcp_syncookies";
const TIMESTAMPS: &str = "net.ipv4.tcp_timestamps";
const RECEIVE_MAX: &str = "net.core.rmem_max";
const TCP_RECEIVE: &str = "net.ipv4.tcp_rmem";
/// What the kernel's cookies want: they are always sent, and their options stand in timestamps without a random
/// offset, which the front door can read.
const WANTED: [(&str, &str); 2] = [(COOKIES, "2"), (TIMESTAMPS, "2")];

/// How long the kernel takes a cookie that it has made: two of its minutes of 64 s.
const COOKIE_LIFE: Duration = Duration::from_secs(128);

/// How long first requests may be under way to a server that is let go.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// What the front door's own answers want: only then the kernel tells it where they belong, behind a balancer that
/// rewrites link addresses and wherever else the way back is another. On the loopback it changes nothing else.
const ROUTES: [(&str, &str); 2] = [("net.ipv4.conf.lo.forwarding", "1"), ("net.ipv6.conf.lo.forwarding", "1")];

/// In the note of sysctls: until when the kernel answered, in seconds since 1970.
const ANSWERED: &str = "answered until";

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
        let watches = |listener: &Listener| [policy.mode, listener.mode].contains(&Mode::Monitor);
        let held: Vec<_> = admitted.into_iter().filter(|listener| !watches(listener)).collect();
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
        if let Err(error) = self.set_sysctls(netns, &sysctls) {
            sysctls.clear();
            notes.push(format!(
                "answers of the front door go back where the requests come from, whatever routes say: {error}"
            ));
        }
        if kernel || plan_multipath && !found.is_empty() {
            self.set_sysctls(netns, &WANTED)?;
            sysctls.extend(WANTED);
        }
        let mut answers = vec![match kernel {
            true => format!("the kernel answers connection requests ({} = 2): {why}", WANTED[0].0),
            false => format!("the front door answers connection requests itself: {why}"),
        }];
        notes.extend(answers.clone());
        let open = !kernel && read(COOKIES).is_ok_and(|value| value == "0");
        if open {
            notes.push(format!(
                "no connection is admitted, all are let through: {COOKIES} is 0, so the kernel takes no cookie; \
                 set it to 1 (sysctl -w {COOKIES}=1) and apply again"
            ));
        }
        notes.extend(if kernel { window_note() } else { timestamp_note() });
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

    /// Sets sysctls, and notes what was there before that.
    fn set_sysctls(&self, netns: &Namespace, wanted: &[(&str, &str)]) -> Result<()> {
        if self.sysctls_before().is_some_and(|before| before.netns != netns.inode) {
            self.restore_all_sysctls()?;
        }
        let mut before = self.sysctls_before().unwrap_or_default();
        before.netns = netns.inode;
        for &(name, wanted) in wanted {
            let now = read(name)?;
            if now != wanted && !before.values.iter().any(|(noted, _)| noted == name) {
                before.values.push((name.to_owned(), now));
            }
        }
        // noted before it is changed, so that a kill in between leaves nothing that nobody restores
        let file = self.sysctl_file();
        if self.sysctls_before().as_ref() != Some(&before) {
            fs::create_dir_all(self.run_dir()).context(|| format!("cannot make {}", self.run_dir().display()))?;
            fs::write(&file, before.to_text()).context(|| format!("cannot write {}", file.display()))?;
        }
        wanted.iter().try_for_each(|(name, wanted)| write(name, wanted))
    }

    /// Gives the sysctls back that were changed, but for those named, unless somebody else has changed them since.
    ///
    /// Timestamps later than others, as long as a cookie is good: a connection that the kernel makes of one has the offset that it
    /// finds then. With another one than its SYN-ACK had, its client takes what it is sent for old, and drops it (PAWS).
    pub(crate) fn restore_sysctls(&self, keep: &[&str]) -> Result<()> {
        let Some(mut before) = self.sysctls_before() else { return Ok(()) };
        let answered = before.has(COOKIES) && !keep.contains(&COOKIES);
        if answered {
            before.answered_until = Some(SystemTime::now());
        }
        let stays = |name: &str| keep.contains(&name) || name == TIMESTAMPS && before.may_return();
        let (kept, restored): (Vec<_>, Vec<_>) = before.values.iter().cloned().partition(|(name, _)| stays(name));
        if restored.is_empty() && !kept.is_empty() {
            return Ok(());
        }
        give_back(before.netns, &restored)?;
        self.note_sysctls(&Before { values: kept, ..before })
    }

    /// Gives all sysctls back, for good: a moment after nothing holds first requests any more, so that those under way find the
    /// kernel as it was when their connections began.
    pub(crate) fn restore_all_sysctls(&self) -> Result<()> {
        let Some(before) = self.sysctls_before() else { return Ok(()) };
        if before.has(COOKIES) {
            sleep(UNDER_WAY);
        }
        give_back(before.netns, &before.values)?;
        self.note_sysctls(&Before { values: Vec::new(), ..before })
    }

    fn note_sysctls(&self, left: &Before) -> Result<()> {
        let file = self.sysctl_file();
        if left.values.is_empty() {
            return fs::remove_file(&file).context(|| format!("cannot remove {}", file.display()));
        }
        fs::write(&file, left.to_text()).context(|| format!("cannot write {}", file.display()))
    }

    /// Whether sysctls are changed now.
    pub(crate) fn sysctls_are_set(&self) -> bool {
        self.sysctl_file().exists()
    }

    fn sysctls_before(&self) -> Option<Before> {
        Before::from_text(&fs::read_to_string(self.sysctl_file()).ok()?)
    }

    fn sysctl_file(&self) -> PathBuf {
        self.run_dir().join("sysctls")
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
fn timestamp_note() -> Option<String> {
    let is_off = read(TIMESTAMPS).is_ok_and(|value| value == "0");
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

fn give_back(netns: u64, values: &[(String, String)]) -> Result<()> {
    namespace::within(netns, || {
        values.iter().filter(|(name, _)| is_ours(name)).try_for_each(|(name, value)| write(name, value))
    })
    .map(drop)
}

/// Sysctls of a network namespace before they were changed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Before {
    netns: u64,
    values: Vec<(String, String)>,
    /// Until when the kernel answered every request with a cookie, if it does no more.
    answered_until: Option<SystemTime>,
}

impl Before {
    fn has(&self, name: &str) -> bool {
        self.values.iter().any(|(noted, _)| noted == name)
    }

    /// Whether clients may return cookies that the kernel has made.
    fn may_return(&self) -> bool {
        // a clock that was set back since cannot tell
        self.answered_until.is_some_and(|until| until.elapsed().is_ok_and(|passed| passed < COOKIE_LIFE))
    }

    fn to_text(&self) -> String {
        let since = |until: SystemTime| until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let answered = self.answered_until.map(|until| format!("{ANSWERED} = {}\n", since(until)));
        let values = self.values.iter().map(|(name, value)| format!("{name} = {value}\n"));
        std::iter::once(format!("netns = {}\n", self.netns)).chain(answered).chain(values).collect()
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter_map(|line| line.split_once(" = "));
        let netns = lines.next().filter(|(name, _)| *name == "netns")?.1.parse().ok()?;
        let (answered, values): (Vec<_>, Vec<_>) = lines.partition(|(name, _)| *name == ANSWERED);
        let answered_until = answered
            .first()
            .and_then(|(_, seconds)| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.parse().ok()?)));
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(Self { netns, values, answered_until })
    }
}

fn is_ours(name: &str) -> bool {
    WANTED.iter().chain(&ROUTES).any(|(own, wanted)| *own == name && read(name).is_ok_and(|now| now == *wanted))
}

fn file(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name.replace('.', "/"))
}

pub(crate) fn read(name: &str) -> Result<String> {
    let text = fs::read_to_string(file(name)).context(|| format!("cannot read the sysctl {name}"))?;
    Ok(text.trim().to_owned())
}

fn write(name: &str, value: &str) -> Result<()> {
    fs::write(file(name), value).context(|| format!("cannot set the sysctl {name} to {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_again() {
        let values = vec![(COOKIES.to_owned(), "1".to_owned())];
        let before = Before { netns: 4_026_531_840, values, answered_until: None };
        let later = |text: &str| Before::from_text(text).unwrap();
        assert_eq!(later(&before.to_text()), before);
        let seconds = Duration::from_secs(1_700_000_000);
        let answered = Before { answered_until: Some(SystemTime::UNIX_EPOCH + seconds), ..before };
        assert_eq!(later(&answered.to_text()), answered);
        assert!(!answered.may_return());
        assert_eq!(Before::from_text("nothing"), None);
    }

    #[test]
    fn a_policy_that_says_who_answers_is_obeyed() {
        assert!(choose(Handshake::Kernel).0);
        assert!(!choose(Handshake::Own).0);
    }
}
