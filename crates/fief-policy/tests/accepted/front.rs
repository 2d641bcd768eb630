// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy means at the front door: rates, isolation and penalties of connection requests, rules for requests, and levels of
//! overload.

use fief_policy::{
    AcceptOrder, Field, Handshake, Isolate, Level, Listener, Lrp, Mode, Overload, Pattern, Per, Refusal, Request,
    RequestRate, Serve, SynRate, Thresholds,
};

use crate::policy;

/// A listener with these lines, and a client rule with those.
fn guarded(lines: &str, client: &str) -> Listener {
    let text = format!(
        "version = 1\n[container.a]\n[container.b]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{lines}\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n{client}\n"
    );
    policy(&text).listeners.remove(0)
}

fn request(lines: &str) -> Request {
    guarded(&format!("penalty = \"3s\"\n[[listener.web.request]]\n{lines}\n"), "").requests.remove(0)
}

#[test]
fn a_listener_without_rules_for_requests_guards_nothing() {
    let plain = guarded("", "");
    assert_eq!(plain, Listener { clients: plain.clients.clone(), ..Listener::new("web", plain.address) });
    assert!(!plain.is_guarded() && !plain.is_policed());
    assert_eq!(plain.addresses().collect::<Vec<_>>(), [plain.address]);
}

#[test]
fn request_rules_bring_admission_and_later_requests_with_them() {
    let rule = "[[listener.web.request]]\npath = \"/x\"\n";
    let with = guarded(rule, "");
    assert!(with.admit && with.later_requests && with.is_guarded() && !with.is_policed());
    assert_eq!(with.admit_from, Level::Always);
    let first_alone = guarded(&format!("later-requests = false\nadmit-from = \"busy\"\n{rule}"), "");
    assert!(first_alone.admit && !first_alone.later_requests);
    assert_eq!(first_alone.admit_from, Level::Busy);
    assert!(!with.bodies_read && !guarded(&format!("bodies = \"ruled\"\n{rule}"), "").bodies_read);
    assert!(guarded(&format!("bodies = \"read\"\n{rule}"), "").bodies_read);
    assert!(guarded("admit = true", "").is_guarded());
    let waited = guarded("restart = \"5s\"", "");
    assert!(waited.is_guarded() && !waited.admit && !waited.is_policed() && waited.restart_ns == 5_000_000_000);
}

#[test]
fn isolation_and_penalties_can_have_exceptions() {
    let with = |lines: &str| {
        let text = format!(
            "version = 1\n[container.a]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{lines}\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n\
             [[listener.web.request]]\npath = \"/x\"\nrefuse = \"drop\"\n"
        );
        let mut policy = fief_policy::parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
        policy.listeners.remove(0)
    };
    let names = |nets: &[ipnet::IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>();
    let web = with(
        "penalty = { for = \"5s\", except = [\"192.0.2.7\", \"fd77::/16\"] }\n\
         isolate = { above = 9, for = \"1s\", except = [\"10.0.0.0-10.0.0.2\"] }",
    );
    assert_eq!((web.penalty_ns, web.requests[0].penalty_ns), (5_000_000_000, 5_000_000_000));
    assert_eq!(names(&web.penalty_except), ["192.0.2.7/32", "fd77::/16"]);
    let isolated = web.isolate.map(|isolate| names(&isolate.except));
    assert_eq!(isolated, Some(vec!["10.0.0.0/31".to_owned(), "10.0.0.2/32".to_owned()]));
    let web = with("penalty = { except = [\"192.0.2.7\"] }");
    assert_eq!((web.penalty_ns, web.penalty_except.len()), (0, 1), "the rules have their own times");
    assert_eq!(with("penalty = \"5s\"").penalty_ns, 5_000_000_000);
}

#[test]
fn isolated_sources_can_have_a_class_of_their_own() {
    let text = "version = 1\n[container.a]\n[container.\"a/last\"]\ncpu.priority = 0\n[listener.web]\n\
        address = \"0.0.0.0:80\"\nadmit = true\nunproven.rate = 5000\n\
        isolate = { above = 10, for = \"1s\", into = \"a/last\" }\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n";
    let policy = fief_policy::parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let web = &policy.listeners[0];
    assert_eq!(web.isolate.as_ref().and_then(|isolate| isolate.into.as_deref()), Some("a/last"));
    let classes: Vec<_> = web.table().classes.into_iter().map(|class| class.container).collect();
    assert_eq!(classes, ["a", "a/last"]);
    assert!(web.queue.is_some(), "two classes wait in a queue");
}

#[test]
fn rates_of_connection_requests_have_a_burst_of_a_second() {
    let lines = "isolate = { above = 1000, for = \"1.5s\", when = \"busy\" }\nproven.rate = 7\nlrp = {}\n\
        unproven = { rate = 5000, burst = 5, when = \"overloaded\" }\n";
    let web = guarded(lines, "syn = { rate = 300, per = \"source\" }");
    assert_eq!(
        web.isolate,
        Some(Isolate { above: 1000, for_ns: 1_500_000_000, when: Level::Busy, into: None, except: vec![] })
    );
    let rate = |per_second, burst, per, when| Some(SynRate { per_second, burst, per, when, from_port: None });
    assert_eq!(web.unproven, rate(5000, 5, Per::Rule, Level::Overloaded));
    assert_eq!(web.proven, rate(7, 7, Per::Rule, Level::Always));
    assert_eq!(web.clients[0].syn, rate(300, 300, Per::Source, Level::Always));
    assert_eq!(web.lrp, Some(Lrp { when: Level::Always }));
    assert!(web.is_policed());
    let ports = |text: &str| guarded("", &format!("syn = {{ rate = 1, from-port = \"{text}\" }}")).clients[0].syn;
    let from_port = |text: &str| ports(text).expect("a rate").from_port;
    assert_eq!((from_port("1024-65535"), from_port("53")), (Some((1024, 65535)), Some((53, 53))));
}

#[test]
fn monitor_holds_for_all_within() {
    let request = "[[listener.web.request]]\npath = \"/x\"\n";
    let modes = |web: &Listener| (web.mode, web.clients[0].mode, web.requests[0].mode);
    let (on, off) = (Mode::Monitor, Mode::Enforce);
    assert_eq!(modes(&guarded(request, "")), (off, off, off));
    assert_eq!(modes(&guarded(&format!("mode = \"monitor\"\n{request}mode = \"enforce\""), "")), (on, on, on));
    let rule = format!("{request}mode = \"monitor\"");
    assert_eq!(modes(&guarded(&rule, "syn.rate = 1")), (off, off, on));
    assert_eq!(modes(&guarded(request, "syn.rate = 1\nmode = \"monitor\"")), (off, on, off));
    let all = policy(
        "version = 1\nmode = \"monitor\"\n[container.a]\n[listener.web]\naddress = \"0.0.0.0:80\"\n\
        mode = \"enforce\"\n[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n",
    );
    assert_eq!((all.mode, all.listeners[0].mode), (on, on));
}

#[test]
fn what_refuses_has_the_listeners_penalty_and_a_way_to_refuse() {
    let plain = request("path = \"/x\"\ncontainer = \"b\"");
    assert_eq!((plain.refusal, plain.penalty_ns, plain.refuses_all()), (None, 0, false));
    let limited = request("path = \"/x\"\nrate = { per-second = 10 }");
    assert_eq!(limited.rate, Some(RequestRate::Requests { per_second: 10, burst: 10, per: Per::Rule }));
    assert_eq!((limited.refusal, limited.refuses_all()), (Some(Refusal::Unavailable), false));
    assert_eq!(limited.penalty_ns, 3_000_000_000);
    let tls = request("server-name = \"x\"\nrate = { per-second = 10 }");
    assert_eq!(tls.refusal, Some(Refusal::Reset));
    let refused = request("refuse = \"503\"\nretry-after = \"2m\"\npenalty = \"1ms\"\nwhen = \"busy\"");
    assert_eq!((refused.retry_after_s, refused.penalty_ns, refused.when), (120, 1_000_000, Level::Busy));
    assert!(refused.refuses_all() && refused.conditions.is_empty());
    let cpu = request("container = \"b\"\nrate = { cpu = \"20%\" }\nrefuse = \"drop\"");
    assert_eq!(cpu.rate, Some(RequestRate::Cpu { ppm: 200_000, burst_ns: 100_000_000 }));
    assert_eq!(cpu.refusal, Some(Refusal::Drop));
}

#[test]
fn a_star_stands_for_anything_and_names_lose_their_case() {
    let patterns = |lines: &str| request(lines).conditions.remove(0);
    let path = patterns("path = [\"/x\", \"/x/*\", \"*.php\", \"/img/*.png\", \"*\"]");
    let text = str::to_owned;
    let expected = [
        Pattern::Exact(text("/x")),
        Pattern::Prefix(text("/x/")),
        Pattern::Suffix(text(".php")),
        Pattern::Around(text("/img/"), text(".png")),
        Pattern::Present,
    ];
    assert_eq!((path.field, &path.any_of[..]), (Field::Path, &expected[..]));
    assert_eq!(patterns("host = \"*.Shop.Example\"").any_of, [Pattern::Suffix(text(".shop.example"))]);
    assert_eq!(patterns("header = { User-Agent = \"Bad*\" }").field, Field::Header(text("user-agent")));
    assert_eq!(patterns("cookie = { Tier = \"Gold\" }").field, Field::Cookie(text("Tier")));
}

#[test]
fn containers_of_request_rules_are_classes_behind_those_of_clients() {
    let web = guarded("[[listener.web.request]]\npath = \"/x\"\ncontainer = \"b\"\n", "accept = \"after\"");
    let classes = web.table().classes;
    let classes: Vec<_> = classes.iter().map(|class| (class.container.as_str(), class.accept)).collect();
    assert_eq!(classes, [("a", AcceptOrder::After), ("b", AcceptOrder::Before)]);
    assert_eq!(web.serve, Serve::Shim);
}

#[test]
fn a_range_of_ports_is_one_listener() {
    let text = "version = 1\n[container.a]\n[listener.web]\naddress = \"[::]:8000-8002\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n";
    let web = policy(text).listeners.remove(0);
    let ports: Vec<u16> = web.addresses().map(|address| address.port()).collect();
    assert_eq!((ports, web.last_port), (vec![8000, 8001, 8002], 8002));
}

#[test]
fn levels_have_the_thresholds_that_are_written_or_the_defaults() {
    assert_eq!(policy("version = 1").overload, Overload::default());
    let overload = policy("version = 1\n[overload]\nbusy = { queue = \"10%\" }\nhold = \"50ms\"").overload;
    assert_eq!(overload.busy, Thresholds { queue_percent: 10, cpu_percent: 0, drops: 0 });
    assert_eq!(overload.overloaded, Overload::default().overloaded);
    assert_eq!(overload.hold_ns, 50_000_000);
    let front = policy("version = 1\n[front]\ninterfaces = [\"eth0\"]\nhandshake = \"kernel\"").front;
    assert_eq!((front.interfaces, front.handshake), (vec!["eth0".to_owned()], Handshake::Kernel));
}

#[test]
fn what_comes_in_unguarded_is_refused_where_the_listener_refuses() {
    let refuses = |front: &str, rule: &str| {
        let policy = policy(&format!(
            "version = 1\n[front]\n{front}\n[container.a]\n[listener.web]\naddress = \"[::]:80\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n[[listener.web.request]]\npath = \"/x\"\n{rule}\n"
        ));
        policy.front.refuses_unguarded(&policy.listeners[0])
    };
    let (refusal, into) = ("refuse = \"reset\"", "container = \"a\"");
    assert_eq!((refuses("", refusal), refuses("", into)), (Some(true), Some(false)));
    assert_eq!(refuses("", "container = \"a\"\nrate = { per-second = 5 }"), Some(true));
    assert_eq!(refuses("interfaces = [\"eth0\"]", refusal), None);
    assert_eq!(refuses("interfaces = [\"eth0\"]\nunguarded = \"refuse\"", into), Some(true));
    assert_eq!(refuses("unguarded = \"pass\"", refusal), Some(false));
}
