// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes a policy wants of a server: one, or a copy for each class, and where each is at home.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use fief_bpf::{Error, ErrorKind, Result};
use fief_policy::{Listener, Policy, Serve};

use crate::children::ROOT;
use crate::schedule::nice_of;

/// What a server is for.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub policy: &'a Policy,
    /// Names of the listeners that it serves; none: all of the policy.
    pub listeners: &'a [String],
    /// Path of its home; `None`: above the classes of its listeners.
    pub container: Option<&'a str>,
    /// Its threads take the container of the socket they work on.
    pub follow: bool,
}

/// One process to start: the whole server, or its copy for one class.
#[derive(Debug)]
pub(crate) struct Start {
    pub cgroup: PathBuf,
    /// Path of its container; `None`: the root.
    pub home: Option<String>,
    pub follow: bool,
    pub nice: i32,
    pub shim: bool,
}

impl Plan<'_> {
    /// The processes, each with a cgroup below the `folder` of its home.
    pub(crate) fn starts(&self, folder: impl Fn(Option<&str>) -> Result<PathBuf>) -> Result<Vec<Start>> {
        let listeners = self.served()?;
        let copied = listeners.iter().find(|listener| listener.serve == Serve::CopiesPerClass);
        match (copied, self.container) {
            (Some(_), None) => self.copies(&listeners, folder),
            (Some(listener), Some(_)) if !self.listeners.is_empty() => {
                let what =
                    format!("the listener {} is served by copies, each in the container of its class", listener.name);
                Err(Error::new(ErrorKind::Other, what).remedy("leave the container out"))
            }
            _ => Ok(vec![self.whole(&listeners, folder)?]),
        }
    }

    /// Clients that its threads do not follow to their classes, since these are not below the home that was named; a sentence with
    /// what to do.
    pub(crate) fn outside(&self) -> Result<Option<String>> {
        let Some(home) = self.container.filter(|path| *path != ROOT && self.follow) else { return Ok(None) };
        let is_below = |path: &str| fief_policy::is_within(path, home);
        let own = self.own()?;
        let classes: BTreeSet<&str> = own.iter().flat_map(|listener| listener.class_paths()).collect();
        let outside: Vec<&str> = classes.iter().copied().filter(|path| !is_below(path)).collect();
        if outside.is_empty() {
            return Ok(None);
        }
        let whom = if outside.len() == classes.len() {
            "nobody is served by class".to_owned()
        } else {
            format!("clients of {} are served as {home}", outside.join(", "))
        };
        let names: Vec<&str> = own.iter().map(|listener| listener.name.as_str()).collect();
        let all: Vec<&str> = classes.into_iter().collect();
        let above = common_parent(&all)
            .map_or_else(String::new, |path| format!("name the container above all of them (--container {path}), or "));
        let are = if outside.len() == 1 { "is" } else { "are" };
        Ok(Some(format!(
            "{whom}: its threads follow connections only below their home, and of the classes of {} {} {are} not below {home}; \
             {above}leave --container out",
            names.join(", "),
            outside.join(", ")
        )))
    }

    /// Names of its listeners that refuse connections while the server restarts. Those that forward are left out: their server is on another
    /// machine.
    pub(crate) fn refusing(&self) -> Result<Vec<String>> {
        let is_refused = |listener: &&Listener| listener.restart_ns == 0 && !listener.forward;
        Ok(self.own()?.into_iter().filter(is_refused).map(|listener| listener.name.clone()).collect())
    }

    /// The listeners where a socket of its has to come: those that were named, or else the only one that the policy has, unless the
    /// home is beside all of its classes, as that of a program that serves nobody.
    pub(crate) fn awaited(&self) -> Result<Vec<&Listener>> {
        let mut served = self.served()?;
        if self.listeners.is_empty() {
            let home = self.container.filter(|path| *path != ROOT);
            let is_below = |path: &str| home.is_none_or(|home| fief_policy::is_within(path, home));
            let is_only = served.len() == 1;
            served.retain(|listener| is_only && listener.class_paths().into_iter().any(is_below));
        }
        Ok(served)
    }

    /// Its listeners, as far as the home tells. Of a server whose listeners are not named, nobody knows which of the policy's it
    /// has: one with no class below the home is taken for another server's, as long as some listener has one.
    fn own(&self) -> Result<Vec<&Listener>> {
        let mut served = self.served()?;
        let home = self.container.filter(|path| *path != ROOT && self.listeners.is_empty());
        let is_below = |listener: &Listener, home: &str| {
            listener.class_paths().into_iter().any(|path| fief_policy::is_within(path, home))
        };
        if let Some(home) = home.filter(|home| served.iter().any(|listener| is_below(listener, home))) {
            served.retain(|listener| is_below(listener, home));
        }
        Ok(served)
    }

    fn served(&self) -> Result<Vec<&Listener>> {
        if self.listeners.is_empty() {
            return Ok(self.policy.listeners.iter().collect());
        }
        self.listeners.iter().map(|name| self.listener(name)).collect()
    }

    fn listener(&self, name: &str) -> Result<&Listener> {
        let all = || self.policy.listeners.iter();
        all().find(|listener| listener.name == name).ok_or_else(|| {
            let names: Vec<&str> = all().map(|listener| listener.name.as_str()).collect();
            let advice = match fief_policy::nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean {near}?"),
                None if names.is_empty() => "it has none".to_owned(),
                None => format!("it has: {}", names.join(", ")),
            };
            Error::new(ErrorKind::NotFound, format!("the policy in force has no listener {name}")).remedy(advice)
        })
    }

    fn whole(&self, listeners: &[&Listener], folder: impl Fn(Option<&str>) -> Result<PathBuf>) -> Result<Start> {
        let classes: Vec<&str> = listeners
            .iter()
            .flat_map(|listener| listener.clients.iter().map(|client| client.container.as_str()))
            .collect();
        let first = || self.policy.containers.first().filter(|_| classes.is_empty()).map(|first| first.path.as_str());
        // threads follow only below their home: classes that have no container in common are served from the root
        let home = match self.container {
            Some(path) => Some(path).filter(|path| *path != ROOT),
            None => common_parent(&classes).or_else(first),
        };
        Ok(Start {
            cgroup: folder(home)?.join("server"),
            home: home.map(str::to_owned),
            follow: self.follow,
            nice: 0,
            shim: listeners.iter().any(|listener| listener.serve == Serve::Shim),
        })
    }

    fn copies(&self, listeners: &[&Listener], folder: impl Fn(Option<&str>) -> Result<PathBuf>) -> Result<Vec<Start>> {
        let copies: BTreeSet<&str> = listeners
            .iter()
            .filter(|listener| listener.serve == Serve::CopiesPerClass)
            .flat_map(|listener| listener.clients.iter().map(|client| client.container.as_str()))
            .collect();
        let start = |path: &str| {
            Ok(Start {
                cgroup: folder(Some(path))?.join(folder_name(path)),
                home: Some(path.to_owned()),
                follow: false,
                nice: nice_of(self.policy.container(path).map_or(100, |container| container.cpu.priority)),
                shim: false,
            })
        };
        copies.into_iter().map(start).collect()
    }
}

/// A name for the folder of a container, which no other one has: a path can have hyphens of its own.
fn folder_name(path: &str) -> String {
    let name = path.replace('%', "%25").replace('-', "%2D").replace('/', "-");
    if name.len() <= LONGEST_FOLDER {
        return name;
    }
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let begin: String = name.chars().take(LONGEST_FOLDER / 8).collect();
    format!("{begin}%%{:016x}", hasher.finish())
}

/// Of a folder's name, with room for what others append.
const LONGEST_FOLDER: usize = 200;

/// The deepest container that all classes are below; `None`: only the root.
pub(crate) fn common_parent<'a>(paths: &[&'a str]) -> Option<&'a str> {
    let (first, rest) = paths.split_first()?;
    let mut common = *first;
    loop {
        let prefix = format!("{common}/");
        if rest.iter().all(|path| *path == common || path.starts_with(&prefix)) {
            return Some(common);
        }
        common = common.rsplit_once('/')?.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_containers_have_one_folder() {
        assert_eq!(folder_name("shop/gold"), "shop-gold");
        let long = |end: &str| format!("{}/{end}", vec!["n".repeat(31); 15].join("/"));
        let paths = ["a/b", "a-b", "a%2Db", "a%2Fb", "a/-b", "a-/b", "a--b", &long("x"), &long("y")].map(folder_name);
        let different: BTreeSet<&String> = paths.iter().collect();
        assert_eq!(different.len(), paths.len(), "{paths:?}");
        assert!(paths.iter().all(|name| name.len() < 256 && !name.contains('/')), "{paths:?}");
    }

    #[test]
    fn the_home_of_a_server_is_the_deepest_container_above_all_classes() {
        assert_eq!(common_parent(&["shop/gold", "shop/browse"]), Some("shop"));
        assert_eq!(common_parent(&["shop/gold", "shop/gold/vip"]), Some("shop/gold"));
        assert_eq!(common_parent(&["gold", "browse"]), None);
        assert_eq!(common_parent(&["shop/gold", "shop/goldfish"]), Some("shop"));
        assert_eq!(common_parent(&[]), None);
    }

    /// A shop of two classes whose sockets the shim tells apart, and an API of copies.
    const TWO: &str = r#"
version = 1
[container.shop]
[container."shop/gold"]
[container."shop/browse"]
[container.api]
[container."api/paid"]
cpu.priority = 200
[container."api/free"]
[listener.web]
address = "0.0.0.0:80"
classes = "listeners"
[[listener.web.client]]
from = ["10.1.0.0/16"]
container = "shop/gold"
[[listener.web.client]]
from = ["any"]
container = "shop/browse"
[listener.api]
address = "0.0.0.0:81"
copies = "per-class"
[[listener.api.client]]
from = ["10.1.0.0/16"]
container = "api/paid"
[[listener.api.client]]
from = ["any"]
container = "api/free"
"#;

    fn planned(listeners: &[&str], container: Option<&str>) -> Result<Vec<Start>> {
        let policy = fief_policy::parse(TWO, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        let listeners: Vec<String> = listeners.iter().map(|&name| name.to_owned()).collect();
        Plan { policy: &policy, listeners: &listeners, container, follow: true }.starts(|_| Ok(PathBuf::from("/own")))
    }

    #[test]
    fn a_server_of_some_listeners_is_at_home_above_their_classes_alone() {
        let web = planned(&["web"], None).expect("a plan");
        assert_eq!((web.len(), web[0].home.as_deref(), web[0].shim, web[0].follow), (1, Some("shop"), true, true));
        let api = planned(&["api"], None).expect("a plan");
        let homes: Vec<_> = api.iter().map(|start| (start.home.as_deref(), start.shim, start.nice < 0)).collect();
        assert_eq!(homes, [(Some("api/free"), false, false), (Some("api/paid"), false, true)]);
        assert_eq!(planned(&[], None).expect("a plan").len(), 2, "copies, as long as nothing else is said");
    }

    #[test]
    fn a_container_that_is_named_is_the_home_of_one_process() {
        let starts = planned(&[], Some("shop/gold")).expect("a plan");
        assert_eq!((starts.len(), starts[0].home.as_deref(), starts[0].shim), (1, Some("shop/gold"), true));
        let root = planned(&["web"], Some("root")).expect("a plan");
        assert_eq!((root[0].home.as_deref(), root[0].shim), (None, true), "as those that nobody gave a home");
        let refused = planned(&["api"], Some("shop")).expect_err("copies have homes of their own").to_string();
        assert!(refused.contains("api") && refused.contains("leave the container out"), "{refused}");
    }

    #[test]
    fn classes_outside_of_the_home_that_was_named_are_told() {
        let policy = fief_policy::parse(TWO, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        let outside = |listeners: &[&str], container, follow| {
            let listeners: Vec<String> = listeners.iter().map(|&name| name.to_owned()).collect();
            Plan { policy: &policy, listeners: &listeners, container, follow }.outside().expect("listeners there are")
        };
        assert_eq!(
            outside(&["web"], Some("api"), true).as_deref(),
            Some(
                "nobody is served by class: its threads follow connections only below their home, and of the classes of web \
                 shop/browse, shop/gold are not below api; name the container above all of them (--container shop), or leave \
                 --container out"
            )
        );
        let some = outside(&[], Some("shop/gold"), true).expect("one class is not below");
        assert!(some.starts_with("clients of shop/browse are served as shop/gold: "), "{some}");
        assert!(!some.contains("api"), "another server's: {some}");
        assert_eq!(outside(&[], Some("shop"), true), None, "the api is another server's");
        let both = outside(&["web", "api"], Some("shop"), true).expect("it serves both");
        assert!(both.ends_with("are not below shop; leave --container out"), "they have none in common: {both}");
        assert_eq!(outside(&["web"], Some("api"), false), None, "nobody follows");
        assert_eq!(outside(&["web"], Some("root"), true), None, "all are below");
        assert_eq!(outside(&["web"], None, true), None);
    }

    #[test]
    fn a_socket_is_awaited_at_listeners_that_were_named_or_at_the_only_one() {
        let only = TWO.split("[listener.api]").next().expect("what is before it");
        let awaited = |text: &str, listeners: &[&str], container| {
            let policy = fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
            let listeners: Vec<String> = listeners.iter().map(|&name| name.to_owned()).collect();
            let plan = Plan { policy: &policy, listeners: &listeners, container, follow: true };
            plan.awaited().expect("there are").into_iter().map(|listener| listener.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(awaited(TWO, &["api"], None), ["api"]);
        assert_eq!(awaited(TWO, &["web"], Some("api")), ["web"], "it was named");
        assert_eq!(awaited(TWO, &[], None), [""; 0], "nobody knows which of them it has");
        assert_eq!(awaited(TWO, &[], Some("shop")), [""; 0], "a program beside the server can be at home there too");
        assert_eq!(awaited(only, &[], None), ["web"]);
        assert_eq!(awaited(only, &[], Some("shop")), ["web"]);
        assert_eq!(awaited(only, &[], Some("root")), ["web"]);
        assert_eq!(awaited(only, &[], Some("api")), [""; 0], "its home is beside the classes");
    }

    #[test]
    fn listeners_that_refuse_while_the_server_restarts_are_named() {
        let text = TWO.replace(":80\"", ":80\"\nrestart = \"10s\"");
        let refusing = |text: &str, listeners: &[&str], container| {
            let policy = fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
            let listeners: Vec<String> = listeners.iter().map(|&name| name.to_owned()).collect();
            Plan { policy: &policy, listeners: &listeners, container, follow: true }.refusing().expect("there are")
        };
        assert_eq!(refusing(TWO, &[], None), ["web", "api"]);
        assert_eq!(refusing(&text, &[], None), ["api"]);
        assert_eq!(refusing(&text, &["web"], None), [""; 0]);
        assert_eq!(refusing(&text, &[], Some("shop")), [""; 0], "the api is another server's");
        assert_eq!(refusing(TWO, &[], Some("shop/gold")), ["web"]);
    }

    #[test]
    fn a_home_is_not_above_what_only_begins_as_it_does() {
        let policy = fief_policy::parse(
            &TWO.replace("shop/", "shopping/").replace("[container.shop]", "[container.shop]\n[container.shopping]"),
            "policy",
        )
        .unwrap_or_else(|errors| panic!("{errors}"));
        let plan = Plan { policy: &policy, listeners: &["web".to_owned()], container: Some("shop"), follow: true };
        assert!(plan.outside().expect("there").is_some_and(|said| said.starts_with("nobody")));
    }

    #[test]
    fn an_unknown_listener_comes_with_the_nearest() {
        let refused = planned(&["wbe"], None).expect_err("no such listener").to_string();
        assert_eq!(refused, "the policy in force has no listener wbe; did you mean web?");
        let refused = planned(&["mail"], None).expect_err("no such listener").to_string();
        assert_eq!(refused, "the policy in force has no listener mail; it has: web, api");
    }
}
