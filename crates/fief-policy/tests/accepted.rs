// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy means: units, defaults, orders.

use fief_policy::{
    AcceptOrder, ClassQueue, Container, Field, From, Handshake, Isolate, Level, Listener, Lrp, Mode, Overload, Pattern,
    Per, Policy, Queue, Refusal, Request, RequestRate, Serve, SynRate, Thresholds, Until, parse,
};

#[track_caller]
fn policy(text: &str) -> Policy {
    parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

#[track_caller]
fn shop(lines: &str) -> Container {
    policy(&format!("version = 1\n[container.shop]\n{lines}\n")).containers.remove(0)
}

fn paths(policy: &Policy) -> Vec<&str> {
    policy.containers.iter().map(|container| container.path.as_str()).collect()
}

#[test]
fn a_version_is_a_whole_policy() {
    let policy = policy("version = 1\n");
    assert_eq!((policy.version, policy.mode), (1, Mode::Enforce));
    assert!(policy.containers.is_empty() && policy.listeners.is_empty());
}

#[test]
fn files_have_labels_where_the_policy_says_so() {
    assert!(!policy("version = 1\n").label_files);
    assert!(!policy("version = 1\nlabel-files = false\n").label_files);
    assert!(policy("version = 1\nlabel-files = true\n").label_files);
}

#[test]
fn a_class_waits_as_the_rules_that_name_it_say() {
    let text = "version = 1\n[container.shop]\n[container.cgi]\n[listener.web]\naddress = \"0.0.0.0:80\"\nqueue.length = 50\n\
                [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"shop\"\nqueue = { length = 30, reserve = 20 }\n\
                [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\nqueue = { wait = \"2s\", reserve = 20 }\n\
                [[listener.web.request]]\npath = \"/cgi\"\ncontainer = \"cgi\"\nqueue.reserve = 30\n\
                [[listener.web.request]]\npath = \"/poll\"\nqueue = false\n";
    let policy = policy(text);
    let web = &policy.listeners[0];
    let shop = ClassQueue { length: Some(30), wait_ns: Some(2_000_000_000), reserve: Some(20) };
    assert_eq!(web.class_queue("shop"), shop);
    assert_eq!(web.class_queue("cgi"), ClassQueue { reserve: Some(30), ..ClassQueue::default() });
    assert_eq!(web.requests.iter().map(|rule| rule.unqueued).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_class_of_a_queue_has_a_latency() {
    let text = "version = 1\n[container.shop]\nlatency = \"99.5% in 20ms\"\n[listener.web]\naddress = \"0.0.0.0:80\"\n\
                queue = { stale = \"400ms\", fair = \"source\", until = \"response\" }\n[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n";
    let policy = policy(text);
    let latency = policy.containers[0].latency.expect("a latency");
    assert_eq!((latency.within_ns, latency.ppm), (20_000_000, 995_000));
    let queue = policy.listeners[0].queue.expect("a queue");
    assert_eq!((queue.stale_ns, queue.fair, queue.in_service), (400_000_000, true, None));
    assert_eq!((queue.until, Queue::default().until), (Until::Response, Until::FirstByte));
}

#[test]
fn a_policy_that_divides_the_cpu_wants_somebody_who_holds_that() {
    let wants = |text: &str| policy(&format!("version = 1\nschedule = \"auto\"\n{text}")).wants_enforcer();
    assert!(wants("[container.shop]\ncpu.share = \"10%\"\n"));
    assert!(wants("[container.shop]\ncpu.limit = \"10%\"\n"));
    assert!(wants("[container.shop]\ncpu.weight = 200\n"));
    // what isolates sources has priority 0, and needs no scheduler for that
    assert!(!wants("[container.shop]\ncpu.priority = 0\n"));
    assert!(!wants("[container.shop]\n"));
    let limit = "[container.shop]\ncpu.limit = \"10%\"\n";
    assert!(policy(&format!("version = 1\nschedule = \"cgroup\"\n{limit}")).wants_enforcer());
    assert!(!policy(&format!("version = 1\nschedule = \"off\"\n{limit}")).wants_enforcer());
    assert!(!policy(&format!("version = 1\n{limit}")).wants_enforcer());
}

#[test]
fn a_container_without_keys_has_all_defaults() {
    let container = shop("");
    assert_eq!(container, Container::new("shop"));
    assert_eq!((container.cpu.share_ppm, container.cpu.limit_ppm), (0, 0));
    assert_eq!((container.cpu.weight, container.cpu.priority), (100, 100));
    assert_eq!((container.memory_max, container.descendants_max), (0, 0));
    assert_eq!((container.network.max_bits, container.network.weight), (0, 100));
    assert!(!container.pass_up);
}

#[test]
fn percentages_are_exact_parts_per_million() {
    let cases = [
        ("60%", 600_000),
        ("100%", 1_000_000),
        ("0.1%", 1_000),
        ("12.3456%", 123_456),
        ("0.0001%", 1),
        ("7.50%", 75_000),
    ];
    for (text, ppm) in cases {
        assert_eq!(shop(&format!("cpu.share = \"{text}\"")).cpu.share_ppm, ppm, "{text}");
        assert_eq!(shop(&format!("cpu.limit = \"{text}\"")).cpu.limit_ppm, ppm, "{text}");
    }
    assert_eq!(shop("cpu.limit = \"max\"").cpu.limit_ppm, 0);
}

#[test]
fn memory_counts_in_powers_of_1024_and_rates_in_powers_of_1000() {
    for (value, bytes) in [
        ("4096", 4096),
        ("\"8K\"", 8192),
        ("\"512m\"", 512 << 20),
        ("\"1.5G\"", 3 << 29),
        ("\"2T\"", 2 << 40),
        ("\"max\"", 0),
    ] {
        assert_eq!(shop(&format!("memory.max = {value}")).memory_max, bytes, "{value}");
    }
    for (value, bits) in [
        ("300bit", 300),
        ("8kbit", 8_000),
        ("100Mbit", 100_000_000),
        ("2.5Gbit", 2_500_000_000),
        ("1tbit", 1_000_000_000_000),
        ("max", 0),
    ] {
        assert_eq!(shop(&format!("network.max = \"{value}\"")).network.max_bits, bits, "{value}");
    }
}

#[test]
fn other_keys_are_taken_as_they_are() {
    let container =
        shop("cpu.weight = 10000\ncpu.priority = 0\nnetwork.weight = 1\npass-up = true\ndescendants.max = 7");
    assert_eq!((container.cpu.weight, container.cpu.priority, container.network.weight), (10_000, 0, 1));
    assert!(container.pass_up);
    assert_eq!(container.descendants_max, 7);
    assert_eq!(shop("descendants = { max = \"max\" }").descendants_max, 0);
}

#[test]
fn the_container_of_programs_may_stand_after_the_one_that_names_it() {
    let text = "version = 1\n[container.shop]\nprograms = \"shop/cgi\"\n[container.\"shop/gold\"]\nprograms = \"cgi\"\n\
                [container.\"shop/cgi\"]\ncpu.limit = \"10%\"\n[container.cgi]\n";
    let policy = policy(text);
    let programs = |path: &str| policy.container(path).and_then(|container| container.programs.as_deref());
    assert_eq!((programs("shop"), programs("shop/gold"), programs("cgi")), (Some("shop/cgi"), Some("cgi"), None));
    assert_eq!(policy.program_containers().into_iter().collect::<Vec<_>>(), ["cgi", "shop/cgi"]);
}

#[test]
fn parents_come_before_their_children_and_are_implied() {
    let policy = policy(
        "version = 1\n[container.\"b/x/y\"]\n[container.a]\n[container.\"c/z\"]\n[container.c]\ncpu.weight = 7\n[container.\"b/x\"]\n",
    );
    assert_eq!(paths(&policy), ["b", "b/x", "b/x/y", "a", "c", "c/z"]);
    assert_eq!(policy.container("c").map(|container| container.cpu.weight), Some(7));
    let deepest = policy.container("b/x/y").expect("it is named");
    assert_eq!((deepest.parent(), deepest.name(), deepest.depth()), (Some("b/x"), "y", 3));
}

#[test]
fn a_parent_without_a_share_has_what_its_children_need() {
    let policy = policy(
        "version = 1\n[container]\n\"a/b\".cpu.share = \"20%\"\n\"a/c/d\".cpu.share = \"5%\"\ne.cpu.share = \"75%\"\n",
    );
    let share = |path: &str| policy.container(path).expect("it is named").cpu.share_ppm;
    assert_eq!((share("a"), share("a/c"), share("a/b"), share("e")), (250_000, 50_000, 200_000, 750_000));
}

#[test]
fn a_parent_keeps_its_own_share_though_its_children_need_less() {
    let policy = policy("version = 1\n[container]\na.cpu.share = \"50%\"\n\"a/b\".cpu.share = \"20%\"\n");
    assert_eq!(policy.containers[0].cpu.share_ppm, 500_000);
}

fn web(head: &str, second: &str) -> Listener {
    let text = format!(
        "version = 1\n[container.a]\n[container.b]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{head}\n\
        [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"a\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"{second}\"\n"
    );
    policy(&text).listeners.remove(0)
}

#[test]
fn several_classes_wait_in_a_queue_unless_the_policy_says_otherwise() {
    let of = |web: Listener| (web.serve, web.queue.is_some(), web.admit, web.later_requests);
    let (queued, plain) = ((Serve::Shared, true, true, true), |serve: Serve| (serve, false, false, false));
    assert_eq!(of(web("", "b")), queued);
    assert_eq!(of(web("admit = true", "b")), queued);
    assert_eq!(of(web("later-requests = true", "b")), queued);
    assert_eq!(of(web("later-requests = false", "b")), (Serve::Shared, true, true, false));
    assert_eq!(web("", "b").queue, web("queue = true", "b").queue);
    assert_eq!(of(web("", "a")), plain(Serve::Shared), "one class has nobody to wait for");
    assert_eq!(of(web("queue = false", "b")), plain(Serve::Shim));
    assert_eq!(of(web("admit = false", "b")), plain(Serve::Shim));
    assert_eq!(of(web("classes = \"listeners\"", "b")), plain(Serve::Shim));
    assert_eq!(of(web("classes = \"listeners\"", "a")), plain(Serve::Shared));
    assert_eq!(of(web("classes = \"shared\"", "b")), plain(Serve::Shared));
    assert_eq!(of(web("copies = \"per-class\"", "b")), plain(Serve::CopiesPerClass));
    assert_eq!(of(web("admit-from = \"always\"", "b")), queued);
    let from_busy_on = web("admit = true\nadmit-from = \"busy\"", "b");
    assert_eq!((from_busy_on.serve, from_busy_on.queue), (Serve::Shim, None));
}

/// Who says in which order listening sockets are accepted from has such sockets; and where the server speaks first nothing comes of a
/// client that could wait.
#[test]
fn nobody_waits_by_default_where_that_has_no_meaning() {
    let text = |address: &str, second: &str| {
        format!(
            "version = 1\n[container.a]\n[container.b]\n[listener.web]\naddress = \"0.0.0.0:{address}\"\n\
             [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"a\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"b\"\n{second}"
        )
    };
    let waits = |address: &str, second: &str| policy(&text(address, second)).listeners[0].queue.is_some();
    assert!(waits("80", "") && waits("8000-8009", ""));
    assert!(!waits("80", "accept = \"after\"\n") && !waits("80", "accept = \"before\"\n"));
    for (port, protocol) in fief_policy::SERVER_SPEAKS_FIRST {
        assert!(!waits(&port.to_string(), ""), "{protocol}");
    }
    assert!(waits("20-30", ""), "not all of these ports are SSH's");
    let inner = text("80", "").replace("\"0.0.0.0", "\"127.0.0.1");
    assert!(policy(&inner).listeners[0].queue.is_none(), "the door is not at the loopback");
    let at_lo = text("80", "").replace("[container.a]", "[front]\ninterfaces = [\"eth0\", \"lo\"]\n[container.a]");
    assert!(policy(&at_lo).listeners[0].queue.is_none(), "the kernel refuses there what comes out of a queue");
}

#[test]
fn rules_for_one_container_are_one_class_and_stay_two_rules() {
    let table = web("", "a").table();
    assert_eq!(table.classes.len(), 1);
    assert_eq!(table.entries.len(), 2);
    assert_eq!(table.entries.iter().map(|entry| entry.rule).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn orders_of_accept_are_classes_of_their_own_in_a_table() {
    let mut listener = web("", "a");
    listener.clients[0].accept = AcceptOrder::After;
    let orders: Vec<_> = listener.table().classes.iter().map(|class| class.accept).collect();
    assert_eq!(orders, [AcceptOrder::After, AcceptOrder::Before]);
}

#[test]
fn a_prefix_that_longer_ones_cover_has_no_entry() {
    let mut listener = web("", "b");
    let rule = |nets: &[&str], container: &str| {
        let mut client = listener.clients[0].clone();
        client.from = From::In(nets.iter().map(|net| net.parse().expect("a prefix")).collect());
        client.container = container.to_owned();
        client
    };
    let halves = [rule(&["10.0.0.0/9"], "a"), rule(&["10.128.0.0/9"], "b"), rule(&["10.0.0.0/8", "11.0.0.0/8"], "c")];
    listener.clients.splice(0..1, halves);
    let prefixes: Vec<_> = listener.table().entries.iter().map(|entry| entry.prefix.to_string()).collect();
    assert_eq!(prefixes, ["::/0", "::ffff:10.0.0.0/105", "::ffff:10.128.0.0/105", "::ffff:11.0.0.0/104"]);
}

#[test]
fn an_address_in_ipv6_clothes_is_ipv4() {
    let text = "version = 1\n[container.a]\n[listener.web]\naddress = \"[::ffff:10.0.0.1]:80\"\n\
        [[listener.web.client]]\nfrom = [\"::ffff:10.1.0.0/112\", \"::ffff:10.2.0.1\"]\ncontainer = \"a\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n";
    let listener = policy(text).listeners.remove(0);
    assert_eq!(listener.address, "10.0.0.1:80".parse().expect("an address"));
    let nets = ["10.1.0.0/16", "10.2.0.1/32"].map(|net| net.parse().expect("a prefix"));
    assert_eq!(listener.clients[0].from, From::In(nets.to_vec()));
}

#[test]
fn ipv6_prefixes_around_ipv4_leave_it_out() {
    let text = "version = 1\n[container.six]\n[container.four]\n[listener.web]\naddress = \"[::]:80\"\n\
        [[listener.web.client]]\nfrom = [\"::/0\"]\ncontainer = \"six\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"four\"\n";
    let table = policy(text).listeners[0].table();
    let class = |address: &str| {
        let entry = table.lookup(address.parse().expect("an address")).expect("a class");
        table.classes[usize::from(entry.class)].container.as_str()
    };
    assert_eq!((class("2001:db8::1"), class("10.0.0.1"), class("::ffff:10.0.0.1")), ("six", "four", "four"));
    assert_eq!(table.entries.len(), 2);
}

#[test]
fn listeners_keep_the_order_of_the_file() {
    let listener = |name: &str, port: u16| {
        format!(
            "[listener.{name}]\naddress = \"0.0.0.0:{port}\"\n[[listener.{name}.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n"
        )
    };
    let policy = policy(&format!("version = 1\n{}{}[container.a]\n", listener("zoo", 80), listener("ant", 81)));
    let names: Vec<_> = policy.listeners.iter().map(|listener| listener.name.as_str()).collect();
    assert_eq!(names, ["zoo", "ant"]);
    assert!(policy.listener("ant").is_some());
}

// ---- the front ----------------------------------------------------------------------------------------------------

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
