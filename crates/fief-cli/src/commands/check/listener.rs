// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy says about a listener: what stands before it, and its rules for clients and requests.

use fief_policy::{
    AcceptOrder, Client, Condition, Field, From, Isolate, Level, Listener, Mode, Pattern, Per, Refusal, Request,
    RequestRate, Serve, SynRate, Unread,
};

use super::queue;
use crate::output::{Align, Table, printable};
use crate::quantity::{duration, percent};

/// Where the shim's order ends: it does not see what a server queues by itself.
const ORDER: &str = "classes are served in order by event loops of one thread (nginx); threads that wait on one epoll set, and \
                     servers that accept ahead, keep it for new connections at most";

pub fn page(listener: &Listener) -> String {
    let mut page = format!("listener {} on {}: {}\n", printable(&listener.name), address(listener), serve(listener));
    for guard in guards(listener) {
        page.push_str(&format!("  {guard}\n"));
    }
    page.push_str(&clients(listener).to_string());
    if !listener.requests.is_empty() {
        page.push_str(&format!("\n{}", requests(listener)));
    }
    page
}

/// All that the page has, each rule on a line that does not depend on the others, so that two listeners can be compared.
pub fn lines(listener: &Listener) -> Vec<String> {
    let client = |client: &Client| {
        let new = new_connections(listener, client);
        format!("clients {}: {}, {new}", who(&client.from, false), client.container)
    };
    let request = |request: &Request| {
        let becomes = fate(request) + trial(listener, request.mode);
        format!("requests {}: {}, {becomes}", conditions(request), class(request))
    };
    let mut lines = vec![format!("on {}: {}", address(listener), serve(listener))];
    lines.extend(guards(listener));
    lines.extend(listener.clients.iter().map(client));
    lines.extend(listener.requests.iter().map(request));
    lines
}

fn serve(listener: &Listener) -> &'static str {
    match listener.serve {
        _ if listener.forward => "its connections are other machines'",
        Serve::Shared if listener.queue.is_some() => "one listening socket, and a queue before it",
        Serve::Shared => "one listening socket for all classes",
        Serve::Shim => "a listening socket for each class behind the server's own",
        Serve::CopiesPerClass => "a copy of the server for each class",
    }
}

pub fn address(listener: &Listener) -> String {
    match listener.last_port == listener.address.port() {
        true => listener.address.to_string(),
        false => format!("{}-{}", listener.address, listener.last_port),
    }
}

/// What holds for all its clients, a line each.
fn guards(listener: &Listener) -> Vec<String> {
    let mut lines = Vec::new();
    if listener.serve == Serve::Shim && !listener.forward {
        lines.push(ORDER.to_owned());
    }
    if listener.mode == Mode::Monitor {
        let what = if listener.queue.is_some() { "wait or be refused" } else { "be refused" };
        lines.push(format!("on trial: what would {what} is counted, and passes"));
    }
    if listener.admit {
        lines.push(format!("connections wait for their first bytes before the server{}", when(listener.admit_from)));
    }
    if listener.later_requests {
        lines.push("later requests of a connection are ruled too".to_owned());
    }
    if listener.bodies_read {
        lines.push("bodies are never ruled: the server reads all of them".to_owned());
    }
    if !listener.proxies.is_empty() {
        lines.push(format!("a PROXY head is skipped from {}", list(&listener.proxies)));
    }
    lines.extend(unread(listener));
    if let Some(Isolate { above, for_ns, when: level, into, except }) = &listener.isolate {
        let (long, level) = (span(*for_ns), format!("{}{}", when(*level), never(except)));
        lines.push(match into {
            None => {
                format!("a network with more than {above} connection requests a second is shut out for {long}{level}")
            }
            Some(class) => format!(
                "a network with more than {above} connection requests a second is served last, as {class}, for \
                 {long}{level}"
            ),
        });
    }
    if !listener.penalty_except.is_empty() {
        lines.push(format!("no penalty ever holds for {}", list(&listener.penalty_except)));
    }
    if listener.restart_ns > 0 {
        let long = span(listener.restart_ns);
        lines.push(format!("while nobody listens, for {long} at most, clients are to send again and are not refused"));
    }
    if let Some(rate) = &listener.unproven {
        lines.push(format!("from sources that have not shown their address: {}", syn_rate(rate)));
    }
    if let Some(rate) = &listener.proven {
        lines.push(format!("from a source that has: {}", syn_rate(rate)));
    }
    if let Some(queue) = &listener.queue {
        lines.extend(queue::lines(listener, queue));
    }
    if let Some(lrp) = &listener.lrp {
        lines.push(format!("packets are received in a thread for each class{}", when(lrp.when)));
    }
    lines
}

/// What becomes of bytes that cannot be read as a request: what that breaks, and what it leaves open.
fn unread(listener: &Listener) -> Vec<String> {
    let means = |kind: Unread| match kind {
        Unread::Malformed => "heads that break their form",
        Unread::TooLong => "heads above 16 kB",
        Unread::Upgrade => "what follows Upgrade or CONNECT before the server's first answer confirms it",
        Unread::Http2 => "HTTP/2 and gRPC without TLS",
        Unread::Proxy => "PROXY heads of balancers that `proxy.from` does not name",
        Unread::NoRoom => "unfinished heads beyond the room for them",
        Unread::Other => "what is neither HTTP nor TLS",
    };
    let words = |kinds: &[Unread]| kinds.iter().map(|kind| means(*kind)).collect::<Vec<_>>().join(", ");
    let refuses = listener.requests.iter().any(|request| request.refusal.is_some() || request.rate.is_some());
    let passes: Vec<_> = Unread::ALL.into_iter().filter(|kind| !listener.unread_refused.contains(kind)).collect();
    let mut lines = Vec::new();
    if !listener.unread_refused.is_empty() {
        lines.push(format!("what cannot be read is reset: {}", words(&listener.unread_refused)));
    }
    if refuses && !passes.is_empty() {
        lines.push(format!("what cannot be read passes, round every rule that refuses: {}", words(&passes)));
    }
    lines
}

fn clients(listener: &Listener) -> Table {
    let has_rates = listener.clients.iter().any(|client| client.syn.is_some());
    let mut table = Table::new(&[
        ("RULE", Align::Right),
        ("CLIENTS", Align::Left),
        ("CONTAINER", Align::Left),
        ("NEW CONNECTIONS", Align::Left),
    ]);
    for (position, client) in listener.clients.iter().enumerate() {
        let mut new = new_connections(listener, client);
        if has_rates && client.syn.is_none() {
            new.push_str("; any number");
        }
        table.push([(position + 1).to_string(), who(&client.from, position == 0), client.container.clone(), new]);
    }
    table
}

fn new_connections(listener: &Listener, client: &Client) -> String {
    let order = match client.accept {
        _ if listener.queue.is_some() => "made as they come",
        AcceptOrder::Before => "before those being served",
        AcceptOrder::After => "after those being served",
    };
    let rate = client.syn.as_ref().map(|rate| format!("; {}{}", syn_rate(rate), trial(listener, client.mode)));
    order.to_owned() + &rate.unwrap_or_default()
}

fn requests(listener: &Listener) -> Table {
    let mut table = Table::new(&[
        ("RULE", Align::Right),
        ("REQUESTS", Align::Left),
        ("CONTAINER", Align::Left),
        ("WHAT BECOMES OF THEM", Align::Left),
    ]);
    for (position, request) in listener.requests.iter().enumerate() {
        table.push([
            (position + 1).to_string(),
            conditions(request),
            class(request).to_owned(),
            fate(request) + trial(listener, request.mode),
        ]);
    }
    table
}

fn class(request: &Request) -> &str {
    request.container.as_deref().unwrap_or("the client's")
}

fn conditions(request: &Request) -> String {
    let one = |condition: &Condition| {
        let patterns: Vec<String> = condition.any_of.iter().map(pattern).collect();
        format!("{} {}", field(&condition.field), patterns.join(", "))
    };
    match request.conditions.as_slice() {
        [] => "all".to_owned(),
        some => some.iter().map(one).collect::<Vec<_>>().join("; "),
    }
}

fn field(field: &Field) -> String {
    match field {
        Field::Method => "method".to_owned(),
        Field::Path => "path".to_owned(),
        Field::Host => "host".to_owned(),
        Field::ServerName => "server name".to_owned(),
        Field::Alpn => "protocol".to_owned(),
        Field::Header(name) => format!("header {name}"),
        Field::Cookie(name) => format!("cookie {name}"),
    }
}

/// As the policy writes it.
fn pattern(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Exact(text) => text.clone(),
        Pattern::Prefix(start) => format!("{start}*"),
        Pattern::Suffix(end) => format!("*{end}"),
        Pattern::Around(start, end) => format!("{start}*{end}"),
        Pattern::Present => "*".to_owned(),
    }
}

fn fate(request: &Request) -> String {
    let refused = request.refusal.map(|refusal| refused(refusal, request));
    let fate = match (request.rate.map(request_rate), refused) {
        (None, None) => "pass".to_owned(),
        (None, Some(refused)) => refused,
        (Some(rate), refused) => format!("{rate}; above that {}", refused.as_deref().unwrap_or("pass")),
    };
    format!("{fate}{}", when(request.when))
}

fn refused(refusal: Refusal, request: &Request) -> String {
    let mut how = match refusal {
        Refusal::Drop => "dropped".to_owned(),
        Refusal::Reset => "reset".to_owned(),
        Refusal::Unavailable => "503".to_owned(),
        Refusal::TooMany => "429".to_owned(),
    };
    if refusal.is_http() && request.retry_after_s > 0 {
        how.push_str(&format!(", again after {} s", request.retry_after_s));
    }
    if request.penalty_ns > 0 {
        how.push_str(&format!(", and no connection for {}", span(request.penalty_ns)));
    }
    how
}

fn request_rate(rate: RequestRate) -> String {
    match rate {
        RequestRate::Requests { per_second, burst, per } => {
            format!("{per_second} a second{}, {burst} at once", each(per))
        }
        RequestRate::Cpu { ppm, .. } => format!("{} of the machine's CPU time", percent(ppm)),
    }
}

fn syn_rate(rate: &SynRate) -> String {
    let ports = rate.from_port.map(|(first, last)| format!(" from ports {first} to {last}")).unwrap_or_default();
    format!("{} a second{}{ports}, {} at once{}", rate.per_second, each(rate.per), rate.burst, when(rate.when))
}

fn each(per: Per) -> &'static str {
    match per {
        Per::Rule => "",
        Per::Source => " from each source",
    }
}

fn when(level: Level) -> &'static str {
    match level {
        Level::Always => "",
        Level::Busy => ", when busy",
        Level::Overloaded => ", when overloaded",
    }
}

/// Of a rule; a listener on trial says so once.
fn trial(listener: &Listener, mode: Mode) -> &'static str {
    match (listener.mode, mode) {
        (Mode::Enforce, Mode::Monitor) => " (on trial: counted, and passes)",
        _ => "",
    }
}

fn who(from: &From, is_first: bool) -> String {
    match from {
        From::Any if is_first => "all".to_owned(),
        From::Any => "all others".to_owned(),
        From::In(nets) => list(nets),
        From::NotIn(nets) => format!("all but {}", list(nets)),
    }
}

/// Of a policy, mostly whole seconds.
pub(super) fn span(ns: u64) -> String {
    match ns % 1_000_000_000 {
        0 => format!("{} s", ns / 1_000_000_000),
        _ => duration(ns),
    }
}

/// Whom a control does not hold for.
fn never(except: &[ipnet::IpNet]) -> String {
    if except.is_empty() { String::new() } else { format!(", but never {}", list(except)) }
}

fn list(nets: &[impl ToString]) -> String {
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        let text = format!("version = 1\n[container.a]\n[container.b]\n[listener.web]\n{text}");
        let policy = fief_policy::parse(&text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"));
        page(&policy.listeners[0])
    }

    #[test]
    fn a_rule_says_whom_it_is_left_with() {
        let nets = vec!["10.0.0.0/8".parse().expect("a prefix")];
        let shown = [who(&From::Any, true), who(&From::Any, false), who(&From::NotIn(nets), true)];
        assert_eq!(shown, ["all", "all others", "all but 10.0.0.0/8"]);
    }

    #[test]
    fn what_stands_before_a_listener_is_told_line_by_line() {
        let told = of("address = \"0.0.0.0:80\"\nmode = \"monitor\"\nadmit = true\nadmit-from = \"busy\"\n\
             isolate = { above = 1000, for = \"10s\", when = \"overloaded\" }\n\
             unproven = { rate = 5000, burst = 500, when = \"busy\" }\nproven = { rate = 50 }\nlrp.when = \"busy\"\n\
             [[listener.web.client]]\nfrom = [\"10.1.0.0/16\"]\ncontainer = \"a\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"b\"\naccept = \"after\"\n\
             syn = { rate = 50, burst = 100, per = \"source\" }\n");
        assert_eq!(
            told,
            "\
listener web on 0.0.0.0:80: a listening socket for each class behind the server's own
  classes are served in order by event loops of one thread (nginx); threads that wait on one epoll set, and servers that \
accept ahead, keep it for new connections at most
  on trial: what would be refused is counted, and passes
  connections wait for their first bytes before the server, when busy
  a network with more than 1000 connection requests a second is shut out for 10 s, when overloaded
  from sources that have not shown their address: 5000 a second, 500 at once, when busy
  from a source that has: 50 a second, 50 at once
  packets are received in a thread for each class, when busy
RULE  CLIENTS      CONTAINER  NEW CONNECTIONS
   1  10.1.0.0/16  a          before those being served; any number
   2  all others   b          after those being served; 50 a second from each source, 100 at once
"
        );
    }

    #[test]
    fn several_classes_wait_in_a_queue_and_the_page_says_so() {
        let told = of("address = \"0.0.0.0:80\"\nmode = \"monitor\"\n\
             [[listener.web.client]]\nfrom = [\"10.1.0.0/16\"]\ncontainer = \"a\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"b\"\n");
        for line in [
            "listener web on 0.0.0.0:80: one listening socket, and a queue before it\n",
            "  on trial: what would wait or be refused is counted, and passes\n",
            "  connections wait for their first bytes before the server\n",
            "  of those that wait the highest cpu.priority is next, among equals by share or weight: of the charged CPU time ",
            "   1  10.1.0.0/16  a          made as they come\n",
        ] {
            assert!(told.contains(line), "{line}: {told}");
        }
    }

    #[test]
    fn a_class_of_isolated_sources_is_named() {
        let told = of("address = \"0.0.0.0:80\"\nadmit = true\nunproven.rate = 9\n\
             isolate = { above = 5, for = \"2s\", into = \"b\" }\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n[container.b.cpu]\npriority = 0\n");
        assert!(told.contains("more than 5 connection requests a second is served last, as b, for 2 s\n"), "{told}");
    }

    #[test]
    fn a_request_rule_is_told_with_what_becomes_of_it() {
        let rules = [
            "path = \"/health\"",
            "path = [\"/cgi-bin/*\", \"*.php\", \"/a/*.b\"]\nmethod = \"POST\"\ncontainer = \"b\"\nrate = { cpu = \"40%\" }\n\
             refuse = \"503\"\nretry-after = \"5s\"",
            "header = { \"x-key\" = [\"*\"] }\nrate = { per-second = 5, burst = 9, per = \"source\" }\nrefuse = \"drop\"\n\
             penalty = \"2s\"\nwhen = \"overloaded\"\nmode = \"monitor\"",
            "refuse = \"reset\"",
        ];
        let rules: String = rules.map(|rule| format!("[[listener.web.request]]\n{rule}\n")).concat();
        let told = of(&format!(
            "address = \"0.0.0.0:8000-8003\"\nclasses = \"shared\"\n[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n{rules}"
        ));
        assert_eq!(
            told,
            "\
listener web on 0.0.0.0:8000-8003: one listening socket for all classes
  connections wait for their first bytes before the server
  later requests of a connection are ruled too
  what cannot be read is reset: heads that break their form, heads above 16 kB, what follows Upgrade or CONNECT before the server's \
first answer confirms it, HTTP/2 and gRPC without TLS, PROXY heads of balancers that `proxy.from` does not name, unfinished heads beyond the room for them, \
what is neither HTTP nor TLS
RULE  CLIENTS  CONTAINER  NEW CONNECTIONS
   1  all      a          before those being served

RULE  REQUESTS                                     CONTAINER     WHAT BECOMES OF THEM
   1  path /health                                 the client's  pass
   2  method POST; path /cgi-bin/*, *.php, /a/*.b  b             40% of the machine's CPU time; above that 503, again after 5 s
   3  header x-key *                               the client's  5 a second from each source, 9 at once; above that dropped, and no connection for 2 s, when overloaded (on trial: counted, and passes)
   4  all                                          the client's  reset
"
        );
    }
}
