// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens to whom, from the policy alone.

mod example;

use example::example;
use fief_policy::{Fields, Level, Policy, Reason, Refusal, RequestRate, Unread, parse};

/// Reason, number of the rule, container and refusal of a request.
#[track_caller]
fn asked(policy: &Policy, from: &str, sent: &Fields, level: Level) -> (Reason, Option<usize>, String, Option<Refusal>) {
    let verdict = policy.listeners[0].evaluate(from.parse().expect("an address"), Some(sent), level);
    let verdict = verdict.expect("every client has a class");
    let request = verdict.request.expect("requests are ruled");
    (request.reason, request.rule.map(|(at, _)| at + 1), verdict.container.to_owned(), request.refusal)
}

fn http(text: &str) -> Fields {
    let fields = Fields::of_http(format!("{}\r\n\r\n", text.trim_end()).as_bytes());
    assert_eq!(fields.unread, None, "{text} is a request");
    fields
}

#[test]
fn the_front_door_lets_in_by_request_and_by_client() {
    let shop = example("front-door.toml");
    let ask = |from: &str, text: &str, level| {
        let (reason, rule, container, refusal) = asked(&shop, from, &http(text), level);
        (reason.as_str(), rule, container, refusal)
    };
    let (stranger, gold) = ("192.0.2.1", "10.1.2.3");
    let browse = |reason, rule| (reason, rule, "shop/browse".to_owned(), None);
    assert_eq!(ask(stranger, "GET / HTTP/1.1", Level::Always), browse("request-client", None));
    assert_eq!(ask(stranger, "GET /health HTTP/1.1", Level::Overloaded), browse("request-rule", Some(1)));
    assert_eq!(ask(gold, "GET / HTTP/1.1", Level::Always).2, "shop/gold");
    let cgi = ("request-rule", Some(4), "shop/cgi".to_owned(), None);
    for target in ["/cgi-bin/x", "//%63gi-bin/./x?q", "/a/../cgi-bin/x", "/index.php", "http://h/cgi-bin/"] {
        assert_eq!(ask(gold, &format!("GET {target} HTTP/1.1"), Level::Busy), cgi, "{target}");
    }
    let refused = ("request-refused", Some(3), "shop/browse".to_owned(), Some(Refusal::Unavailable));
    assert_eq!(ask(stranger, "GET /cgi-bin/x HTTP/1.1", Level::Overloaded), refused);
    let robot = "GET /cgi-bin/x HTTP/1.1\r\nhost: h\r\nUser-Agent:  BadBot/1.0 \r\n\r\n";
    assert_eq!(ask(stranger, robot, Level::Overloaded).1, Some(2));
    assert_eq!(ask(stranger, "POST /login HTTP/1.1", Level::Always), browse("request-rule", Some(5)));
    assert_eq!(ask(stranger, "GET /login HTTP/1.1", Level::Always), browse("request-client", None));
}

#[test]
fn a_verdict_says_what_it_looked_at() {
    let shop = example("front-door.toml");
    let fields = http("POST /x/../login HTTP/1.1");
    let from = "192.0.2.1".parse().expect("an address");
    let verdict = shop.listeners[0].evaluate(from, Some(&fields), Level::Always).expect("a verdict");
    let request = verdict.request.expect("it is ruled");
    let seen: Vec<&str> = request.because.iter().map(|met| met.value.as_str()).collect();
    assert_eq!(seen, ["POST", "/login"]);
    assert!(matches!(request.rate, Some(RequestRate::Requests { per_second: 1, burst: 5, .. })));
    assert_eq!((verdict.client_rule, verdict.listener), (1, "web"));
}

#[test]
fn tls_is_told_apart_by_its_name_and_a_rule_on_trial_changes_nothing() {
    let sites = example("tls-names.toml");
    let ask = |name: Option<&str>| asked(&sites, "2001:db8::1", &Fields::of_tls(name, &["h2"]), Level::Always);
    assert_eq!(ask(Some("www.ACME.example.")).2, "acme");
    assert_eq!(ask(Some("globex.example")), (Reason::RequestRule, Some(2), "globex".to_owned(), None));
    assert_eq!(ask(Some("acme.example.evil")), (Reason::RequestClient, None, "others".to_owned(), None));
    let hello = Fields::of_tls(None, &[]);
    let from = "2001:db8::1".parse().expect("an address");
    let verdict = sites.listeners[0].evaluate(from, Some(&hello), Level::Always).expect("a verdict");
    let request = verdict.request.expect("it is ruled");
    assert_eq!((request.rule, request.trial.map(|(at, _)| at), request.refusal), (None, Some(2), None));
}

#[test]
fn tls_is_reset_where_http_would_be_answered() {
    let text = "version = 1\n[container.a]\n[listener.web]\naddress = \"0.0.0.0:80\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n[[listener.web.request]]\nrefuse = \"503\"\n";
    let policy = parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let refusal = |fields: &Fields| asked(&policy, "10.0.0.1", fields, Level::Always).3;
    assert_eq!(refusal(&http("GET / HTTP/1.0")), Some(Refusal::Unavailable));
    assert_eq!(refusal(&Fields::of_tls(Some("a"), &[])), Some(Refusal::Reset));
}

#[test]
fn what_cannot_be_read_is_refused_where_a_rule_refuses_and_passes_where_the_policy_says_so() {
    let shop = example("front-door.toml");
    let mut tolerant = example("front-door.toml");
    tolerant.listeners[0].unread_refused.clear();
    let ruled = |policy: &Policy, text: &str| {
        let read = Fields::of_http(text.as_bytes());
        let from = "192.0.2.1".parse().expect("an address");
        let verdict = policy.listeners[0].evaluate(from, Some(&read), Level::Always).expect("a verdict");
        let request = verdict.request.expect("it is ruled");
        (request.reason, request.rule.map(|(at, _)| at + 1), verdict.container.to_owned())
    };
    let browse = |reason| (reason, None, "shop/browse".to_owned());
    let each = |text: &str, kind| {
        assert_eq!(ruled(&shop, text), browse(Reason::Refused(kind)), "{text:?}");
        assert_eq!(ruled(&tolerant, text), browse(Reason::Passed(kind)), "{text:?}");
    };
    for text in ["SSH-2.0-x\r\n", "GET\r\n", "GET  \r\n", "(ET / HTTP/1.1\r\n\r\n"] {
        each(text, Unread::Other);
    }
    for text in ["", "\r\n", "GET / HTTP/1.1\r\n", "GET x HTTP/1.1\r\n\r\n", "GET / HTTP/2.0\r\n\r\n", "GET /x\r\n"] {
        each(text, Unread::Malformed);
    }
    let long = |path: &str| format!("GET {path} HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    for path in ["/", &"/".repeat(20_000)] {
        each(&long(path), Unread::TooLong);
    }
    let within = (Reason::RequestRule, Some(4), "shop/cgi".to_owned());
    for text in [&long("/cgi-bin/x"), "GET /cgi-bin/x", "GET cgi-bin/x HTTP/2.0\r\n\r\n"] {
        assert_eq!(ruled(&tolerant, text), within, "what could be read is ruled");
        let refused = matches!(ruled(&shop, text).0, Reason::Refused(_));
        assert!(refused, "a rule that lets pass may have read another request: {text}");
    }
}

#[test]
fn a_rule_refuses_what_could_be_read_of_what_is_no_request() {
    let text = "version = 1\n[container.a]\n[listener.web]\naddress = \"0.0.0.0:80\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n\
        [[listener.web.request]]\npath = \"/cgi-bin/*\"\nrefuse = \"reset\"\n\
        [[listener.web.request]]\npath = \"/*\"\ncontainer = \"a\"\n\
        [[listener.web.request]]\nrefuse = \"drop\"\n";
    let policy = parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let ruled = |text: &str| asked(&policy, "10.0.0.1", &Fields::of_http(text.as_bytes()), Level::Always);
    for text in ["GET /cgi-bin/x", "GET cgi-bin/x HTTP/1.1\r\n", "GET /cgi-bin/x HTTP/2.0\r\n\r\n"] {
        assert_eq!((ruled(text).0, ruled(text).1), (Reason::RequestRefused, Some(1)), "{text}");
    }
    let unread = (Reason::Refused(Unread::Malformed), None);
    assert_eq!((ruled("GET /x\r\n").0, ruled("GET /x\r\n").1), unread, "a rule that lets pass does not decide");
    for text in ["\x02", "SSH-2.0-x\r\n", "\r\n\r\n\0"] {
        assert_eq!((ruled(text).0, ruled(text).1), (Reason::RequestRefused, Some(3)), "{text}");
    }
}

#[test]
fn requests_are_ruled_from_the_level_of_admission_on() {
    let mut shop = example("front-door.toml");
    shop.listeners[0].admit_from = Level::Busy;
    let from = "192.0.2.1".parse().expect("an address");
    let fields = http("GET /index.php HTTP/1.1");
    let of = |level| shop.listeners[0].evaluate(from, Some(&fields), level).expect("a verdict");
    assert_eq!((of(Level::Always).request, of(Level::Always).container), (None, "shop/browse"));
    assert_eq!(of(Level::Busy).container, "shop/cgi");
}

#[test]
fn the_exact_listener_comes_before_the_wildcards() {
    let mut text = "version = 1\n[container.a]\n".to_owned();
    for (name, address) in [
        ("four", "0.0.0.0:80"),
        ("six", "[::]:80"),
        ("both", "[::]:81"),
        ("exact", "10.0.0.1:90"),
        ("many", "10.0.0.2:90-99"),
    ] {
        text.push_str(&format!("[listener.{name}]\naddress = \"{address}\"\n"));
        text.push_str(&format!("[[listener.{name}.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n"));
    }
    let policy = parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
    for (local, name) in [
        ("192.0.2.1:80", Some("four")),
        ("[::ffff:192.0.2.1]:80", Some("four")),
        ("[2001:db8::1]:80", Some("six")),
        ("192.0.2.1:81", Some("both")),
        ("10.0.0.1:90", Some("exact")),
        ("10.0.0.2:95", Some("many")),
        ("10.0.0.2:100", None),
        ("10.0.0.3:90", None),
    ] {
        let found = policy.listener_at(local.parse().expect("an address")).map(|listener| listener.name.as_str());
        assert_eq!(found, name, "{local}");
    }
}

// ---- how requests are read ----------------------------------------------------------------------------------------

fn named<'f>(pairs: &'f [(Vec<u8>, Vec<u8>)], name: &str) -> Option<&'f str> {
    let found = pairs.iter().find(|(other, _)| other == name.as_bytes());
    found.map(|(_, value)| std::str::from_utf8(value).expect("a text"))
}

#[test]
fn reads_a_request_as_tolerantly_as_servers_do() {
    let lines = "HOST:\tShop.Example:80 \r\nX:1\r\ny: 2\r\nX: 3\r\n\r\nAfter: 5\r\n";
    let fields = http(&format!("\r\n\r\nGET  /a HTTP/1.1 \r\n{lines}"));
    assert_eq!(fields.method.as_deref(), Some(&b"GET"[..]));
    assert_eq!(fields.path.as_deref(), Some(&b"/a"[..]));
    assert_eq!(fields.host.as_deref(), Some(&b"shop.example"[..]));
    assert_eq!(named(&fields.headers, "x"), Some("1"), "the first one counts");
    assert_eq!(named(&fields.headers, "after"), None, "the head ends at the empty line");
}

#[test]
fn what_servers_differ_about_is_unread_but_shown() {
    let odd = |lines: &str| {
        let fields = Fields::of_http(format!("GET /a HTTP/1.1\r\n{lines}\r\n").as_bytes());
        assert_eq!(fields.unread, Some(Unread::Malformed), "{lines:?}");
        assert_eq!(fields.path.as_deref(), Some(&b"/a"[..]), "{lines:?}");
        fields.host.map(|host| String::from_utf8(host).expect("a text"))
    };
    for (lines, host) in [
        ("Host: a\r\r\n", Some("a")),
        ("Host:\r\n a\r\n", Some("a")),
        ("Host: a\r\n b\r\n", Some("a\r\n b")),
        ("Host : a\r\n", Some("a")),
        ("Host: a\r\nHost: a\r\n", Some("a")),
        ("X: y\r\n Host: a\r\n", None),
        (" Host: a\r\n", None),
        ("X: y\rHost: a\r\n", None),
        ("no colon\r\nHost: a\r\n", Some("a")),
        ("Host: a\r\nX: \0\r\n", Some("a")),
        ("Host: a\nX: y\r\n", Some("a")),
        ("Host: a\r\n\n", Some("a")),
    ] {
        assert_eq!(odd(lines).as_deref(), host, "{lines:?}");
    }
}

#[test]
fn a_method_in_small_letters_is_unread() {
    let shop = example("front-door.toml");
    for method in ["post", "Post", "POSt"] {
        let fields = Fields::of_http(format!("{method} /login HTTP/1.1\r\n\r\n").as_bytes());
        let (reason, rule, ..) = asked(&shop, "192.0.2.1", &fields, Level::Always);
        assert_eq!((reason, rule), (Reason::Refused(Unread::Malformed), None), "{method}");
    }
}

#[test]
fn reads_the_first_cookie_of_a_name_over_all_cookie_headers() {
    let fields = http("GET / HTTP/1.1\r\nCookie: a=1; tier = gold ;b\r\ncookie:tier=none;c=\"x=y\";=d;e=\r\n\r\n");
    let cookies: Vec<_> = ["a", "tier", "b", "c", "e", "A"].map(|name| named(&fields.cookies, name)).to_vec();
    assert_eq!(cookies, [Some("1"), Some("gold"), None, Some("\"x=y\""), Some(""), None]);
}

#[test]
fn the_authority_of_an_absolute_target_and_the_host_must_be_one() {
    let host = |text: &str| {
        let fields = Fields::of_http(text.as_bytes());
        (fields.host.map(|host| String::from_utf8(host).expect("a text")), fields.unread.is_some())
    };
    let a = Some("a".to_owned());
    assert_eq!(host("GET http://a/x HTTP/1.1\r\nHost: A:80\r\n\r\n"), (a.clone(), false));
    assert_eq!(host("GET http://a/x HTTP/1.1\r\n\r\n"), (a.clone(), false));
    assert_eq!(host("GET http://a/x HTTP/1.1\r\nHost: b\r\n\r\n"), (a.clone(), true));
    assert_eq!(host("GET http:///x HTTP/1.1\r\nHost: b\r\n\r\n"), (None, true));
    assert_eq!(host("GET http://a/x HTTP/1.1\r\nHost:\r\n\r\n"), (a.clone(), true));
    assert_eq!(host("GET http://a/x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), (a, true));
}

#[test]
fn no_more_protocols_are_looked_at_than_the_kernel_side_does() {
    assert_eq!(Fields::of_tls(Some("x"), &["a"; 10]).alpn.len(), 8);
}

// ---- unread -------------------------------------------------------------------------------------------------------

fn listener(keys: &str, rules: &str) -> Result<fief_policy::Listener, fief_policy::Diagnostics> {
    let text = format!(
        "version = 1\n[container.a]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{keys}\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n{rules}"
    );
    parse(&text, "test.toml").map(|mut policy| policy.listeners.remove(0))
}

#[test]
fn what_cannot_be_read_is_refused_by_default_where_a_rule_in_force_refuses_or_rates() {
    let refused = |keys: &str, rule: &str| {
        let rule = format!("[[listener.web.request]]\npath = \"/x\"\n{rule}");
        listener(keys, &rule).unwrap_or_else(|errors| panic!("{errors}")).unread_refused
    };
    assert_eq!(refused("", "refuse = \"503\""), Unread::ALL);
    assert_eq!(refused("", "rate = { per-second = 9 }"), Unread::ALL);
    assert_eq!(refused("", ""), [], "a rule that only names a class can be gone round without harm");
    assert_eq!(refused("", "refuse = \"503\"\nmode = \"monitor\""), [], "a rule on trial breaks nothing");
    assert_eq!(refused("mode = \"monitor\"", "refuse = \"503\""), Unread::ALL, "and is counted on a listener on trial");
    assert_eq!(refused("unread = \"pass\"", "refuse = \"503\""), []);
    assert_eq!(refused("unread = \"refuse\"", ""), Unread::ALL);
    assert_eq!(refused("unread = { http2 = \"refuse\" }", ""), [Unread::Http2]);
    let all_but = refused("unread = { http2 = \"pass\", upgrade = \"pass\" }", "refuse = \"503\"");
    assert_eq!(all_but, [Unread::Malformed, Unread::TooLong, Unread::Proxy, Unread::NoRoom, Unread::Other]);
}

#[test]
fn unread_and_proxy_are_checked() {
    let rule = "[[listener.web.request]]\npath = \"/x\"\nrefuse = \"503\"\n";
    let wrong = |keys: &str, rules: &str| listener(keys, rules).expect_err("an error").to_string();
    assert!(wrong("unread = \"refuse\"", "").contains("nothing is read"));
    assert!(wrong("unread = \"deny\"", rule).contains("\"deny\" is unknown"));
    assert!(wrong("unread = { h2c = \"pass\" }", rule).contains("h2c"));
    assert!(wrong("proxy = { from = [\"any\"] }", rule).contains("names everybody"));
    assert!(wrong("proxy = {}", rule).contains("from"));
    let balanced = listener("proxy = { from = [\"10.0.0.5\", \"2001:db8::/32\"] }", rule).expect("a policy");
    assert_eq!(balanced.proxies.len(), 2);
}
