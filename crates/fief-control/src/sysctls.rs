// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sysctls that a policy changes in a network namespace, and what they were before, so that they are given back.
//!
//! What was there is noted before it is changed: a kill in between leaves nothing that nobody restores. While `apply --here` moves the
//! front door, two namespaces have a note: that of the policy in force keeps its sysctls until the next one is.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use fief_bpf::{Context, Result};

use crate::Fief;
use crate::namespace::{self, Known};

pub(crate) const COOKIES: &str = "net.ipv4.tcp_syncookies";
pub(crate) const TIMESTAMPS: &str = "net.ipv4.tcp_timestamps";

/// What the kernel's cookies want: they are always sent, and their options stand in timestamps without a random
/// offset, which the front door can read.
pub(crate) const WANTED: [(&str, &str); 2] = [(COOKIES, "2"), (TIMESTAMPS, "2")];

/// What the front door's own answers want: only then the kernel tells it where they belong, behind a balancer that
/// rewrites link addresses and wherever else the way back is another. On the loopback it changes nothing else.
pub(crate) const ROUTES: [(&str, &str); 2] =
    [("net.ipv4.conf.lo.forwarding", "1"), ("net.ipv6.conf.lo.forwarding", "1")];

/// What a queue at the loopback wants. Other packets there bear the route that they were sent by; what comes out of a queue is a copy
/// without one. Of IPv4 the kernel drops such a packet as a martian where its source is an address of the machine's own
/// (accept_local), or one of its addresses is of 127.0.0.0/8 (route_localnet).
///
/// Neither lets a neighbour in: for a packet of a wire the kernel goes by the interface that it came in at, and by `all`, and both stay as
/// they are. At lo itself a packet without a route comes from a process that may send raw packets, which can send the same one with a
/// route (IP_HDRINCL), or from a program that redirects there.
pub const LOOPBACK_QUEUES: [(&str, &str); 2] =
    [("net.ipv4.conf.lo.accept_local", "1"), ("net.ipv4.conf.lo.route_localnet", "1")];

/// The kernel takes a cookie that it has made for less (MAX_SYNCOOKIE_AGE: two minutes).
const COOKIE_LIFE: Duration = Duration::from_secs(128);

/// How long first requests may be under way to a server that is let go.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// What to do about a sysctl that cannot be given back.
const STAYS_NOTED: &str = "what it was stays noted; once it can be set, `fief down` gives it back";

/// In a note: whose sysctls follow.
const NETNS: &str = "netns";
/// In a note: until when the kernel answered, in seconds since 1970.
const ANSWERED: &str = "answered until";

/// Sysctls of a network namespace before they were changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before {
    netns: Known,
    values: Vec<(String, String)>,
    /// Until when the kernel answered every request with a cookie, if it does no more.
    answered_until: Option<SystemTime>,
}

impl Fief {
    /// Sets sysctls of the caller's namespace. Where all are as wanted they may be read-only.
    pub(crate) fn set_sysctls(&self, netns: Known, wanted: &[(&str, &str)]) -> Result<()> {
        let mut noted = self.sysctls_before();
        if !noted.iter().any(|before| before.netns.is(netns)) {
            noted.push(Before { netns, ..Before::default() });
        }
        let before = noted.iter_mut().find(|before| before.netns.is(netns)).expect("it is there now");
        let mut others = Vec::new();
        for &(name, wanted) in wanted {
            let now = read(name)?;
            if now != wanted {
                // what was noted, somebody else has changed since
                before.values.retain(|(noted, _)| noted != name);
                before.values.push((name.to_owned(), now));
                others.push((name, wanted));
            }
        }
        if wanted.iter().any(|(name, _)| *name == TIMESTAMPS) {
            before.answered_until = None;
        }
        self.note_sysctls(&noted)?;
        others.into_iter().try_for_each(|(name, wanted)| write(name, wanted))
    }

    /// Gives the sysctls back that were changed, but for those named of this namespace, unless somebody else has changed them since.
    ///
    /// Timestamps later than others, as long as a cookie is good: a connection that the kernel makes of one has the offset that it
    /// finds then. With another one than its SYN-ACK had, its client takes what it is sent for old, and drops it (PAWS).
    pub(crate) fn restore_sysctls(&self, netns: Known, keep: &[&str]) -> Result<()> {
        let noted = self.sysctls_before();
        let (mut left, mut failed) = (Vec::new(), Ok(()));
        for mut before in noted {
            let keep = if before.netns.is(netns) { keep } else { &[] };
            if before.has(TIMESTAMPS) && !keep.contains(&TIMESTAMPS) && before.answered_until.is_none() {
                before.answered_until = Some(SystemTime::now());
            }
            let stays = |name: &str| keep.contains(&name) || name == TIMESTAMPS && before.may_return();
            let (kept, restored): (Vec<_>, Vec<_>) = before.values.iter().cloned().partition(|(name, _)| stays(name));
            let given = give_back(before.netns, &restored);
            left.push(if given.is_ok() { Before { values: kept, ..before } } else { before });
            failed = failed.and(given);
        }
        failed.and(self.note_sysctls(&left))
    }

    /// Gives all sysctls back, for good: a moment after nothing holds first requests any more, so that those under way find the
    /// kernel as it was when their connections began. What a namespace does not take stays noted, for the next `fief down`.
    pub(crate) fn restore_all_sysctls(&self) -> Result<()> {
        let noted = self.sysctls_before();
        if noted.iter().any(|before| before.has(COOKIES) || before.has(TIMESTAMPS)) {
            sleep(UNDER_WAY);
        }
        let (mut left, mut failed) = (Vec::new(), Ok(()));
        for before in noted {
            if let Err(error) = give_back(before.netns, &before.values) {
                left.push(before);
                failed = failed.and(Err(error.remedy(STAYS_NOTED)));
            }
        }
        failed.and(self.note_sysctls(&left))
    }

    /// A policy has failed: what was changed for it since the note was `earlier` is given back, or else stays noted.
    pub(crate) fn unset_sysctls(&self, earlier: &[Before]) -> Result<()> {
        let (mut left, mut failed) = (earlier.to_vec(), Ok(()));
        for before in self.sysctls_before() {
            let was = earlier.iter().find(|was| was.netns.is(before.netns));
            let is_new = |one: &&(String, String)| !was.is_some_and(|was| was.values.contains(one));
            let new: Vec<_> = before.values.iter().filter(is_new).cloned().collect();
            let given = give_back(before.netns, &new);
            if given.is_err() {
                left.retain(|was| !was.netns.is(before.netns));
                left.push(before);
            }
            failed = failed.and(given);
        }
        failed.and(self.note_sysctls(&left))
    }

    /// The notes as they stand, one for each namespace.
    pub(crate) fn sysctls_before(&self) -> Vec<Before> {
        fs::read_to_string(self.sysctl_file()).map(|text| from_text(&text)).unwrap_or_default()
    }

    /// What a sysctl of the caller's namespace is where Fief wants nothing of it.
    pub(crate) fn sysctl_without_us(&self, netns: Known, name: &str) -> Result<String> {
        let noted = self.sysctls_before().into_iter().find(|before| before.netns.is(netns));
        let value = noted.and_then(|before| before.values.into_iter().find(|(noted, _)| noted == name));
        value.filter(|_| is_ours(name)).map_or_else(|| read(name), |(_, value)| Ok(value))
    }

    fn note_sysctls(&self, noted: &[Before]) -> Result<()> {
        let file = self.sysctl_file();
        let text: String = noted.iter().filter(|before| !before.values.is_empty()).map(Before::to_text).collect();
        if text.is_empty() {
            return match fs::remove_file(&file) {
                Err(error) if file.exists() => Err(error).context(|| format!("cannot remove {}", file.display())),
                _ => Ok(()),
            };
        }
        if fs::read_to_string(&file).is_ok_and(|there| there == text) {
            return Ok(());
        }
        self.make_run_dir()?;
        // never half of it: what is not noted nobody gives back
        let aside = file.with_extension("next");
        let written = fs::write(&aside, text).and_then(|()| fs::rename(&aside, &file));
        written.context(|| format!("cannot write {}", file.display()))
    }

    pub(crate) fn sysctl_file(&self) -> PathBuf {
        self.run_dir().join("sysctls")
    }
}

impl Before {
    fn has(&self, name: &str) -> bool {
        self.values.iter().any(|(noted, _)| noted == name)
    }

    /// Whether clients may return cookies that the kernel has made.
    fn may_return(&self) -> bool {
        // where the clock was set back since, they may
        self.answered_until.is_some_and(|until| until.elapsed().map_or(true, |passed| passed < COOKIE_LIFE))
    }

    fn to_text(&self) -> String {
        let since = |until: SystemTime| until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let answered = self.answered_until.map(|until| format!("{ANSWERED} = {}\n", since(until)));
        let values = self.values.iter().map(|(name, value)| format!("{name} = {value}\n"));
        std::iter::once(format!("{NETNS} = {}\n", self.netns)).chain(answered).chain(values).collect()
    }
}

/// Reads the notes of all namespaces, as [`Before::to_text`] writes each.
fn from_text(text: &str) -> Vec<Before> {
    let mut noted: Vec<Before> = Vec::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(" = ")) {
        match (name, noted.last_mut()) {
            (NETNS, _) => noted.push(Before { netns: Known::read(value).unwrap_or_default(), ..Before::default() }),
            (ANSWERED, Some(before)) => {
                let since = value.parse().ok().map(Duration::from_secs);
                before.answered_until = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
            }
            (_, Some(before)) => before.values.push((name.to_owned(), value.to_owned())),
            (_, None) => {}
        }
    }
    noted
}

/// The first error is the one to tell; the others are given back all the same.
fn give_back(netns: Known, values: &[(String, String)]) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let all = || {
        let ours = values.iter().filter(|(name, _)| is_ours(name));
        ours.map(|(name, value)| write(name, value)).fold(Ok(()), Result::and)
    };
    namespace::within(netns, all).map(drop)
}

fn is_ours(name: &str) -> bool {
    let mut all = WANTED.iter().chain(&ROUTES).chain(&LOOPBACK_QUEUES);
    all.any(|(own, wanted)| *own == name && read(name).is_ok_and(|now| now == *wanted))
}

pub(crate) fn file(name: &str) -> PathBuf {
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
    use std::os::unix::fs::MetadataExt;

    use fief_testkit::{Feature, NetNs, require};
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::namespace::Namespace;

    /// Removes what it notes, also when a test fails.
    struct Noting(Fief);

    impl Drop for Noting {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.run_dir());
        }
    }

    #[test]
    fn what_one_namespace_does_not_take_is_given_back_later_and_to_others_at_once() {
        if !(require(Feature::Root) && require(Feature::NetNs)) {
            return;
        }
        let Noting(fief) = &Noting(Fief::with_scope(&format!("ff-{}-sysctls", std::process::id())));
        let [(first, wanted), (second, _)] = ROUTES;
        let namespaces = ["refuses", "takes"].map(|role| NetNs::new(role).expect("a namespace"));
        let [refuses, takes] = namespaces.each_ref().map(|namespace| {
            for name in [first, second] {
                namespace.sysctl(name, wanted).expect("set");
            }
            fs::metadata(namespace.path()).expect("it is there").ino()
        });
        let now = || {
            let both = || [first, second].map(|name| read(name).expect("it is there"));
            namespaces.each_ref().map(|namespace| namespace.run(both).expect("in the namespace"))
        };
        let noted = |netns, value: &str| {
            let values = vec![(first.to_owned(), value.to_owned()), (second.to_owned(), "0".to_owned())];
            Before { netns: Known::from(netns), values, answered_until: None }
        };
        fief.note_sysctls(&[noted(refuses, "what the kernel refuses"), noted(takes, "0")]).expect("noted");
        fs::write(fief.policy_file(0), "version = 1\n").expect("written");
        let error = fief.restore_all_sysctls().expect_err("the kernel refuses it");
        assert!(error.to_string().contains(first) && error.advice() == Some(STAYS_NOTED), "{error}");
        assert_eq!(now(), [[wanted, "0"], ["0", "0"]]);
        fief.forget().expect("the rest goes");
        assert!(!fief.policy_file(0).exists());
        assert_eq!(fief.sysctls_before(), [noted(refuses, "what the kernel refuses")]);
        fief.note_sysctls(&[noted(refuses, "0")]).expect("noted");
        fief.restore_all_sysctls().expect("now it takes it");
        assert_eq!(now(), [["0", "0"], ["0", "0"]]);
        fief.forget().expect("all goes");
        assert!(!fief.run_dir().exists());
    }

    /// `name` tells the installations of tests apart.
    fn noting(name: &str) -> Option<(Noting, NetNs)> {
        let fief = Fief::with_scope(&format!("ff-{}-{name}", std::process::id()));
        let is_possible = require(Feature::Root) && require(Feature::NetNs);
        is_possible.then(|| (Noting(fief), NetNs::new(name).expect("a namespace")))
    }

    #[test]
    fn another_namespace_with_the_number_of_one_that_is_gone_keeps_its_sysctls() {
        let Some((noting, namespace)) = noting("renumbered") else { return };
        let Noting(fief) = &noting;
        let [(name, wanted), _] = ROUTES;
        namespace.sysctl(name, wanted).expect("set");
        let inode = fs::metadata(namespace.path()).expect("it is there").ino();
        let gone = Known::read(&format!("{inode} {}", u64::MAX)).expect("a number and a cookie");
        let before = Before { netns: gone, values: vec![(name.to_owned(), "0".to_owned())], answered_until: None };
        fief.note_sysctls(&[before]).expect("noted");
        fief.restore_all_sysctls().expect("nothing is left to give back");
        let now = namespace.run(|| read(name).expect("it is there")).expect("in the namespace");
        assert_eq!((now.as_str(), fief.sysctls_before()), (wanted, Vec::new()));
    }

    /// As in most containers; for the thread that calls it.
    fn make_read_only() {
        unshare(CloneFlags::CLONE_NEWNS).expect("root");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private");
        mount(Some("/proc/sys"), "/proc/sys", none, MsFlags::MS_BIND, none).expect("mounted");
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, "/proc/sys", none, read_only, none).expect("mounted again");
    }

    #[test]
    fn read_only_sysctls_that_are_as_wanted_are_left_as_they_are() {
        let Some((noting, namespace)) = noting("readonly") else { return };
        let Noting(fief) = &noting;
        for (name, _) in ROUTES {
            namespace.sysctl(name, "0").expect("set");
        }
        let set = || {
            make_read_only();
            fief.set_sysctls(Namespace::of_caller().expect("a namespace").known, &ROUTES)
        };
        let error = namespace.run(set).expect("in the namespace").expect_err("they are others");
        assert!(error.to_string().contains(ROUTES[0].0), "{error}");
        for (name, wanted) in ROUTES {
            namespace.sysctl(name, wanted).expect("set");
        }
        namespace.run(set).expect("in the namespace").expect("nothing is to be changed");
    }

    #[test]
    fn a_queue_at_the_loopback_whose_sysctls_cannot_be_set_is_refused() {
        let Some((noting, namespace)) = noting("atlo") else { return };
        let Noting(fief) = &noting;
        let text = "version = 1\n[front]\ninterfaces = [\"lo\"]\nhandshake = \"own\"\n[container.a]\n[listener.web]\n\
                    address = \"127.0.0.1:80\"\nqueue = true\n[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n";
        let policy = fief_policy::parse(text, "p").unwrap_or_else(|errors| panic!("{errors}"));
        let prepare =
            || fief.prepare_handshake(&policy, &Namespace::of_caller().expect("a namespace"), &mut Vec::new());
        let refused = namespace.run(|| {
            make_read_only();
            prepare().map(drop)
        });
        let error = refused.expect("in the namespace").expect_err("they cannot be set");
        assert!(error.to_string().contains(LOOPBACK_QUEUES[0].0), "{error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("queue = false")), "{error}");
        let set = namespace.run(|| prepare().map(|plan| plan.sysctls)).expect("in the namespace").expect("they can");
        assert!(LOOPBACK_QUEUES.iter().all(|(name, _)| set.contains(name)), "{set:?}");
    }

    #[test]
    fn what_a_failed_policy_changed_stays_noted_where_it_cannot_be_given_back() {
        let Some((noting, namespace)) = noting("unset") else { return };
        let Noting(fief) = &noting;
        for (name, _) in ROUTES {
            namespace.sysctl(name, "0").expect("set");
        }
        let own = || Namespace::of_caller().expect("a namespace").known;
        let noted = namespace.run(|| {
            fief.set_sysctls(own(), &ROUTES).expect("set");
            let noted = fief.sysctls_before();
            make_read_only();
            fief.unset_sysctls(&[]).expect_err("nothing can be written");
            noted
        });
        let noted = noted.expect("in the namespace");
        assert!(!noted.is_empty());
        assert_eq!(fief.sysctls_before(), noted);
        fief.unset_sysctls(&[]).expect("now it takes it");
        assert_eq!(fief.sysctls_before(), []);
        let now = namespace.run(|| ROUTES.map(|(name, _)| read(name).expect("it is there"))).expect("in it");
        assert_eq!(now, ["0", "0"]);
    }

    #[test]
    fn what_was_noted_of_namespaces_is_read_again() {
        let values = vec![(COOKIES.to_owned(), "1".to_owned())];
        let before = Before { netns: Known::from(4_026_531_840), values, answered_until: None };
        let since = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let known = Known::read("2 3").expect("a number and a cookie");
        let answered = Before { netns: known, answered_until: since, ..before.clone() };
        let text = [&before, &answered].map(Before::to_text).concat();
        assert!(!answered.may_return());
        assert_eq!(from_text(&text), [before, answered]);
        assert_eq!(from_text("nothing"), []);
    }
}
