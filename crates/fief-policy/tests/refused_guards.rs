// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every error about rates of connection requests, isolation, admission, levels of overload and the front.

mod marked;

use fief_policy::{Kind, parse};
use marked::refuses;

const HEAD: &str = "version = 1\n[container.shop]\n[container.\"shop/gold\"]\n";
const CATCH_ALL: &str = "[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n";

/// A policy with these lines in its listener.
fn web(lines: &str) -> String {
    format!("{HEAD}[listener.web]\naddress = \"0.0.0.0:80\"\n{lines}\n{CATCH_ALL}")
}

/// The same with one client rule of these lines before the catch-all.
fn client(lines: &str) -> String {
    web(&format!("[[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"shop/gold\"\n{lines}"))
}

/// A policy with these lines at the top.
fn top(lines: &str) -> String {
    format!("version = 1\n{lines}\n")
}

#[track_caller]
fn accepts(text: &str) {
    parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn refuses_rates_of_connection_requests_that_are_none() {
    refuses(&client("syn = { rate = ⟦0⟧ }"), Kind::Value, "0 is out of range", "write syn.rate = 1");
    refuses(&client("syn = { rate = ⟦-3⟧ }"), Kind::Value, "-3 is out of range", "write syn.rate = 1");
    for rate in ["\"50/s\"", "\"50 r/s\""] {
        refuses(&client(&format!("syn = {{ rate = ⟦{rate}⟧ }}")), Kind::Type, "`syn.rate`", "write syn.rate = 50");
    }
    for rate in ["\"50/s\"", "50"] {
        refuses(&client(&format!("syn = ⟦{rate}⟧")), Kind::Type, "`syn`", "write syn = { rate = 50, burst = 50 }");
    }
    let text = client("syn = { rate = 300, burst = ⟦0⟧ }");
    refuses(&text, Kind::Value, "0 is out of range", "syn.burst = 1, or remove it for the default");
    let text = client("syn = ⟦{ burst = 300 }⟧");
    refuses(&text, Kind::Missing, "`syn` in rule 1 of [listener.web] has no `rate`", "add rate = 300 to `syn`");
    refuses(&client("syn = ⟦300⟧"), Kind::Type, "is an integer", "write syn = { rate = 300, burst = 300 }");
    refuses(&client("syn = { rate = ⟦\"300\"⟧ }"), Kind::Type, "is a text", "syn.rate = 300, without the quotes");
    refuses(&client("syn = { rate = 3, per = ⟦\"client\"⟧ }"), Kind::Value, "\"client\" is unknown", "per = ");
    refuses(&client("syn = { rate = 3, when = ⟦\"overload\"⟧ }"), Kind::Value, "unknown", "when = \"overloaded\"");
    refuses(&client("syn = { ⟦limit⟧ = 3, rate = 3 }"), Kind::UnknownKey, "`syn.limit`", "write `syn.rate`");
    let port = |text: &str| client(&format!("syn = {{ rate = 1, from-port = ⟦{text}⟧ }}"));
    refuses(&port("\"0-5\""), Kind::Value, "begins with port 0", "write 1");
    refuses(&port("\"9-5\""), Kind::Value, "ends before it begins", "write \"5-9\"");
    refuses(&port("\"5-70000\""), Kind::Value, "is no port", "1024-65535");
    refuses(&port("53"), Kind::Type, "is an integer", "from-port = \"53\"");
    accepts(&client("syn = { rate = 1000000, burst = 1, per = \"source\", when = \"busy\" }\nmode = \"monitor\""));
}

#[test]
fn refuses_exceptions_that_are_everybody_or_too_many() {
    let text = web("isolate = { above = 9, for = \"1s\", except = ⟦[\"any\"]⟧ }");
    refuses(
        &text,
        Kind::Contradiction,
        "`isolate.except` in [listener.web] is everybody",
        "name prefixes, or remove `isolate`",
    );
    let text = web("penalty = { for = \"1s\", except = [⟦\"10.0.0.1/8\"⟧] }");
    refuses(&text, Kind::Prefix, "host bits set", "write \"10.0.0.0/8\"");
    let many: Vec<String> = (0..1025).map(|n| format!("\"10.{}.{}.1\"", n / 256, n % 256)).collect();
    let text = web(&format!("penalty = {{ except = ⟦[{}]⟧ }}", many.join(", ")));
    refuses(&text, Kind::Limit, "`penalty.except` in [listener.web] has 1025 prefixes", "put neighbouring");
    let text = web("penalty = { ⟦exempt⟧ = [\"10.0.0.1\"] }");
    refuses(&text, Kind::UnknownKey, "`penalty.exempt`", "write `penalty.except`");
    refuses(&web("penalty = ⟦5⟧"), Kind::Type, "is an integer", "penalty = \"5s\"");
}

#[test]
fn refuses_a_mode_of_no_rate() {
    let text = client("mode = ⟦\"monitor\"⟧");
    refuses(&text, Kind::Contradiction, "rule 1 of [listener.web] has a `mode`, but no rate", "or remove `mode`");
}

#[test]
fn refuses_a_class_of_isolated_sources_that_could_not_be_last() {
    let last = "[container.last]\ncpu.priority = 0\n";
    let with = |lines: &str| web(lines).replace("[listener.web]", &format!("{last}[listener.web]"));
    let isolate = "unproven.rate = 9\nisolate = { above = 1, for = \"1s\", into = ";
    accepts(&with(&format!("admit = true\n{isolate}\"last\" }}")));
    let text = with(&format!("queue = false\n{isolate}⟦\"last\"⟧ }}"));
    refuses(&text, Kind::Contradiction, "`isolate.into`, but no admission", "add admit = true");
    let text = with("admit = true\nisolate = { above = 1, for = \"1s\", into = ⟦\"last\"⟧ }");
    refuses(&text, Kind::Missing, "no budget", "add unproven = { rate = 5000 }");
    let text = with(&format!("admit = true\n{isolate}⟦\"lost\"⟧ }}"));
    refuses(&text, Kind::UnknownContainer, "no container `lost`", "write \"last\"");
    let text = with(&format!("admit = true\n{isolate}⟦\"shop/gold\"⟧ }}"));
    refuses(
        &text,
        Kind::Contradiction,
        "has cpu.priority = 100",
        "write cpu.priority = 0 in [container.\"shop/gold\"]",
    );
    let text =
        with(&format!("admit = true\n{isolate}⟦\"last\"⟧ }}")).replace("container = \"shop\"", "container = \"last\"");
    refuses(&text, Kind::Contradiction, "the class of isolated sources, and of others", "a container of its own");
}

#[test]
fn refuses_rates_and_isolation_of_a_listener_that_say_half() {
    let text = web("unproven = ⟦{ when = \"busy\" }⟧");
    refuses(&text, Kind::Missing, "`unproven` in [listener.web] has no `rate`", "add rate = 300");
    let text = web("proven = { rate = 10, ⟦when⟧ = \"busy\" }");
    refuses(&text, Kind::UnknownKey, "`proven.when`", "remove it");
    let text = web("isolate = ⟦{ for = \"10s\" }⟧");
    refuses(&text, Kind::Missing, "`isolate` in [listener.web] has no `above`", "add above = 1000");
    let text = web("isolate = ⟦{ above = 1000 }⟧");
    refuses(&text, Kind::Missing, "has no `for`", "add for = \"10s\"");
    refuses(&web("isolate = { above = 1000, for = ⟦10⟧ }"), Kind::Type, "is an integer", "isolate.for = \"10s\"");
    refuses(&web("isolate = { above = 1000, for = ⟦\"10\"⟧ }"), Kind::Value, "has no unit", "\"10s\" or \"10ms\"");
    refuses(&web("isolate = { above = 1000, for = ⟦\"10 sec\"⟧ }"), Kind::Value, "unknown unit", "write \"10s\"");
    refuses(&web("isolate = { above = 1000, for = ⟦\"0s\"⟧ }"), Kind::Value, "too short", "at least \"1ms\"");
    refuses(&web("isolate = { above = 1000, for = ⟦\"2000h\"⟧ }"), Kind::Value, "too long", "at most \"24h\"");
    refuses(&web("penalty = ⟦\"soon\"⟧"), Kind::Value, "is not a time", "as in \"5s\"");
    accepts(&web(
        "isolate = { above = 1000, for = \"1.5m\", when = \"busy\" }\nunproven.rate = 5000\nproven.rate = 10",
    ));
}

#[test]
fn says_once_that_a_penalty_of_the_listener_is_wrong() {
    let text = web("penalty = ⟦\"5\"⟧\n[[listener.web.request]]\npath = \"/x\"\nrefuse = \"503\"");
    refuses(&text, Kind::Value, "has no unit", "\"5s\" or \"5ms\"");
}

#[test]
fn refuses_admission_that_contradicts_the_rules() {
    let request = "[[listener.web.request]]\npath = \"/x\"\nrefuse = \"503\"\n";
    let text = web(&format!("admit = ⟦false⟧\n{request}"));
    refuses(&text, Kind::Contradiction, "lets connections in before their request", "mode = \"monitor\"");
    let text = web("later-requests = ⟦true⟧");
    refuses(&text, Kind::Contradiction, "no request rules that later requests could meet", "remove `later-requests`");
    let text = web("bodies = ⟦\"read\"⟧");
    refuses(&text, Kind::Contradiction, "no request rules: no body is read", "remove `bodies`");
    let text = web("admit-from = ⟦\"busy\"⟧");
    refuses(&text, Kind::Contradiction, "has `admit-from`, but no admission", "add admit = true");
    refuses(&web("admit = ⟦\"true\"⟧"), Kind::Type, "is a text", "admit = true, without the quotes");
    accepts(&web("admit = true\nadmit-from = \"busy\""));
    accepts(&web(&format!("later-requests = false\nadmit-from = \"overloaded\"\n{request}")));
}

#[test]
fn refuses_to_wait_for_a_server_less_than_clients_do() {
    refuses(&web("restart = ⟦\"999ms\"⟧"), Kind::Value, "below one second", "restart = \"5s\"");
    accepts(&web("restart = \"1s\""));
}

#[test]
fn refuses_what_a_forwarded_connection_cannot_have() {
    let limit = "isolate = { above = 1, for = \"1s\" }";
    let request = "⟦[[listener.web.request]]⟧\npath = \"/x\"\nrefuse = \"drop\"";
    for (key, lines) in [
        ("admit", "admit = ⟦true⟧"),
        ("restart", "restart = ⟦\"5s\"⟧"),
        ("later-requests", "later-requests = ⟦false⟧"),
        ("copies", "copies = ⟦\"per-class\"⟧"),
        ("lrp", "lrp = ⟦{}⟧"),
    ] {
        let text = web(&format!("forward = true\n{limit}\n{lines}"));
        refuses(&text, Kind::Contradiction, &format!("both `forward` and `{key}`"), "");
    }
    let text = web(&format!("forward = true\n{limit}")) + request;
    refuses(&text, Kind::Contradiction, "both `forward` and `request`", "run a proxy");
    let text = web("forward = ⟦true⟧");
    refuses(&text, Kind::Contradiction, "limits no connection requests", "add one of them");
    let beside = "\n[listener.local]\naddress = \"10.0.0.1:80\"\n[[listener.local.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"";
    accepts(&(web(&format!("forward = true\n{limit}")) + beside));
}

#[test]
fn refuses_words_that_are_no_level_of_receive_work() {
    refuses(&web("lrp = { when = ⟦\"never\"⟧ }"), Kind::Value, "\"never\" is unknown", "when = ");
    refuses(&web("lrp = ⟦true⟧"), Kind::Type, "is true or false", "lrp.when = ");
    accepts(&web("lrp = {}"));
}

#[test]
fn refuses_ranges_of_ports_that_are_none() {
    let address = |address: &str| web("").replace("\"0.0.0.0:80\"", address);
    let text = address("⟦\"0.0.0.0:8099-8000\"⟧");
    refuses(&text, Kind::Address, "end before they begin", "write \"0.0.0.0:8000-8099\"");
    refuses(&address("⟦\"0.0.0.0:8000-\"⟧"), Kind::Address, "is not a port", "from 8000 to 65535");
    refuses(&address("⟦\"0.0.0.0:8000-70000\"⟧"), Kind::Address, "\"70000\" in", "from 8000 to 65535");
    refuses(&address("⟦\"0.0.0.0:0-80\"⟧"), Kind::Address, "port 0", "\"0.0.0.0:80\"");
    refuses(&address("⟦\"8000-8099\"⟧"), Kind::Address, "is not an address and a port", "0.0.0.0");
    accepts(&address("\"[::]:8000-8099\""));
    accepts(&address("\"0.0.0.0:80-80\""));
}

#[test]
fn refuses_several_ports_with_a_listening_socket_for_each_class() {
    let text = client("").replace("\"0.0.0.0:80\"", "⟦\"0.0.0.0:80-81\"⟧\nclasses = \"listeners\"");
    refuses(&text, Kind::Contradiction, "several ports and a listening socket for each class", "classes = \"shared\"");
    accepts(&text.replace(['⟦', '⟧'], "").replace("\"listeners\"", "\"shared\""));
    accepts(&client("").replace("\"0.0.0.0:80\"", "\"0.0.0.0:80-81\""));
}

#[test]
fn refuses_ranges_of_ports_that_meet() {
    let two = |first: &str, second: &str| {
        let other = CATCH_ALL.replace("web", "api");
        let text = web("").replace("\"0.0.0.0:80\"", first);
        format!("{text}[listener.api]\naddress = {second}\n{other}")
    };
    let text = two("\"10.0.0.1:80-90\"", "⟦\"10.0.0.1:90-99\"⟧");
    refuses(&text, Kind::Conflict, "have the same address 10.0.0.1:90", "change one of the addresses");
    let text = two("\"0.0.0.0:80-90\"", "⟦\"10.0.0.1:85\"⟧");
    refuses(&text, Kind::Conflict, "10.0.0.1:85 of `api` arrive at 0.0.0.0:85 of `web`", "the exact address too");
    accepts(&two("\"10.0.0.1:80-89\"", "\"10.0.0.1:90-99\""));
}

#[test]
fn refuses_more_addresses_than_the_kernel_side_has_room_for() {
    let text = web("").replace("\"0.0.0.0:80\"", "⟦\"0.0.0.0:1000-2024\"⟧");
    refuses(&text, Kind::Limit, "the listeners have 1025 addresses", "fewer ports");
    accepts(&web("").replace("\"0.0.0.0:80\"", "\"0.0.0.0:1000-2023\""));
}

#[test]
fn refuses_interfaces_that_are_none() {
    let interfaces = |value: &str| top(&format!("[front]\ninterfaces = {value}"));
    refuses(&interfaces("⟦\"eth0\"⟧"), Kind::Type, "is a text", "write front.interfaces = [\"eth0\"]");
    refuses(&interfaces("⟦[]⟧"), Kind::Value, "is empty", "remove it for every interface");
    refuses(&interfaces("[⟦7⟧]"), Kind::Type, "has an integer in it", "in quotes");
    refuses(&interfaces("[⟦\"a/b\"⟧]"), Kind::Value, "not the name of a network interface", "as `ip link` shows");
    refuses(&interfaces("[⟦\"sixteen-letters-\"⟧]"), Kind::Value, "not the name", "of 1 to 15 bytes");
    refuses(&interfaces("[\"eth0\", ⟦\"eth0\"⟧]"), Kind::Contradiction, "for the second time", "remove it");
    refuses(&top("[front]\nhandshake = ⟦\"cookies\"⟧"), Kind::Value, "\"cookies\" is unknown", "handshake = ");
    refuses(&top("[front]\n⟦interface⟧ = [\"eth0\"]"), Kind::UnknownKey, "`front.interface`", "`front.interfaces`");
    accepts(&top("[front]\ninterfaces = [\"eth0\", \"eth0.7\"]\nhandshake = \"own\""));
}

#[test]
fn refuses_levels_of_overload_that_mean_nothing() {
    let overload = |lines: &str| top(&format!("[overload]\n{lines}"));
    refuses(&overload("busy = { queue = ⟦25⟧ }"), Kind::Type, "is an integer", "overload.busy.queue = \"25%\"");
    refuses(&overload("busy = { queue = ⟦\"0%\"⟧ }"), Kind::Value, "0%", "remove it");
    refuses(&overload("busy = { cpu = ⟦\"12.5%\"⟧ }"), Kind::Value, "not a whole percentage", "write \"12%\"");
    refuses(&overload("busy = { cpu = ⟦\"101%\"⟧ }"), Kind::Value, "more than the machine", "at most \"100%\"");
    refuses(&overload("busy = { drops = ⟦0⟧ }"), Kind::Value, "out of range", "overload.busy.drops = 1");
    refuses(&overload("busy = ⟦{}⟧"), Kind::Missing, "names no threshold", "remove it for the default");
    refuses(&overload("busy = ⟦\"25%\"⟧"), Kind::Type, "is a text", "write overload.busy = { queue = \"25%\" }");
    refuses(&overload("hold = ⟦5⟧"), Kind::Type, "is an integer", "overload.hold = \"5s\"");
    let text = overload("busy = { cpu = \"90%\" }\noverloaded = { cpu = ⟦\"80%\"⟧ }");
    refuses(&text, Kind::Contradiction, "`cpu`: overloaded from 80% on, but busy only from 90% on", "exchange the two");
    let text = overload("busy = { drops = ⟦5000⟧ }");
    refuses(&text, Kind::Contradiction, "overloaded from 1000 a second on", "name both");
    accepts(&overload("busy = { cpu = \"90%\" }\noverloaded = { queue = \"10%\" }\nhold = \"500ms\""));
}

#[test]
fn refuses_classes_that_wait_where_nothing_does_or_for_more_than_there_is() {
    let text = |listener: &str, first: &str, second: &str| {
        format!(
            "version = 1\n[container.a]\n[container.b]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{listener}\n\
             [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"a\"\n{first}\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"b\"\n{second}\n"
        )
    };
    let queue = "queue = { length = 50 }";
    accepts(&text(queue, "queue = { length = 50, reserve = 20 }", "queue = { wait = \"1ms\", reserve = 30 }"));
    let nothing = "nothing waits there";
    accepts(&text("", "queue = { length = 5 }", ""));
    let listeners = "classes = \"listeners\"";
    refuses(&text(listeners, "queue = ⟦{ length = 5 }⟧", ""), Kind::Contradiction, nothing, "queue = true");
    refuses(&text("queue = false", "queue = ⟦{ length = 5 }⟧", ""), Kind::Contradiction, nothing, "queue = true");
    let instead = text(listeners, "queue = ⟦{ length = 5 }⟧", "");
    refuses(&instead, Kind::Contradiction, nothing, "queue = true in the place of `classes`");
    let both = text("classes = \"listeners\"\nqueue = ⟦true⟧", "", "");
    refuses(&both, Kind::Contradiction, "has a `queue`, and classes = \"listeners\"", "remove one of the two");
    let both = text("queue = ⟦true⟧", "accept = \"before\"", "");
    refuses(&both, Kind::Contradiction, "has a `queue`, and `accept` in a rule", "remove `accept`");
    refuses(&text("queue = true\nclasses = ⟦\"listner\"⟧", "", ""), Kind::Value, "listner", "listeners");
    let long = text(queue, "queue = ⟦{ length = 51 }⟧", "");
    refuses(&long, Kind::Contradiction, "51 of `a` may wait in [listener.web], where 50 can", "queue.length = 50");
    let within = text(queue, "queue = ⟦{ length = 5, reserve = 6 }⟧", "");
    refuses(&within, Kind::Contradiction, "6 places are reserved for `a`, of which 5 may wait", "queue.reserve = 5");
    let all = text(queue, "queue = { reserve = 20 }", "queue = ⟦{ reserve = 31 }⟧");
    refuses(&all, Kind::Contradiction, "51 places of [listener.web] are reserved, and there are 50", "reserve fewer");
    let twice = text(queue, "queue = { wait = \"1s\" }", "queue = ⟦{ wait = \"2s\" }⟧").replace("= \"b\"", "= \"a\"");
    refuses(&twice, Kind::Contradiction, "say how `a` waits, and not the same", "at one of the rules");
    refuses(&text(queue, "queue = { reserve = ⟦0⟧ }", ""), Kind::Value, "out of range", "write queue.reserve = 1");
    let until = text("queue = { until = ⟦\"reponse\"⟧ }", "", "");
    refuses(&until, Kind::Value, "\"reponse\" is unknown", "write until = \"response\"");
    let counted = text("queue = { until = ⟦\"close\"⟧ }", "", "");
    refuses(&counted, Kind::Contradiction, "leaves their number to Fief", "in-service = 4");
    accepts(&text("queue = { until = \"close\", in-service = 4 }", "", ""));
    refuses(&text(queue, "queue = ⟦true⟧", ""), Kind::Type, "is true or false", "queue = { length = 100");
    refuses(&text(queue, "queue = { ⟦max⟧ = 5 }", ""), Kind::UnknownKey, "queue.max", "write `queue.length`");
    let request = format!("{}[[listener.web.request]]\npath = \"/x\"\nqueue = ", text(queue, "", ""));
    let unnamed = format!("{request}⟦{{ length = 5 }}⟧\n");
    refuses(&unnamed, Kind::Contradiction, "names no container", "add `container`");
    refuses(&format!("{request}⟦5⟧\n"), Kind::Type, "is an integer", "queue = false");
}
