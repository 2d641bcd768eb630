// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the listeners of a policy mean: the classes of their clients, the table of addresses that they become, and who waits in a
//! queue.

use fief_policy::{AcceptOrder, ClassQueue, From, Listener, Queue, Serve, Until};

use crate::policy;

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
    assert!(policy(&at_lo).listeners[0].queue.is_none(), "a queue changes sysctls there");
}

#[test]
fn a_queue_is_at_the_loopback_where_lo_is_named_and_clients_of_ipv4_come() {
    let at = |address: &str, front: &str, more: &str| {
        let text = format!(
            "version = 1\n{front}\n[container.a]\n[listener.web]\naddress = \"{address}:80\"\n{more}\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n"
        );
        policy(&text).queues_at_loopback()
    };
    let (lo, queue) = ("[front]\ninterfaces = [\"eth0\", \"lo\"]", "queue = true");
    for address in ["127.0.0.1", "0.0.0.0", "[::]", "10.0.0.1"] {
        assert!(at(address, lo, queue), "{address}");
    }
    assert!(!at("[::1]", lo, queue), "of IPv6 alone");
    assert!(!at("127.0.0.1", "", queue) && !at("127.0.0.1", "[front]\ninterfaces = [\"eth0\"]", queue));
    assert!(!at("127.0.0.1", lo, "admit = true"), "nobody waits");
    assert!(!at("127.0.0.1", lo, "queue = true\nmode = \"monitor\""), "nobody waits on trial");
    assert!(!at("127.0.0.1", &format!("mode = \"monitor\"\n{lo}"), queue), "nobody waits on trial");
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
