// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables that the kernel side looks requests up in say what the rules say, read one after the other.

use fief_policy::{
    Condition, Field, Fields, From, Level, Listener, Mode, Pattern, Reason, Refusal, Request, RequestTable, parse,
};
use proptest::prelude::*;

const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

// ---- few words, so that rules and requests meet often -------------------------------------------------------------

fn word() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", ".p", "/", "x"]), 0..5)
        .prop_map(|pieces| pieces.concat())
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        3 => word().prop_map(Pattern::Exact),
        3 => word().prop_map(Pattern::Prefix),
        3 => word().prop_map(Pattern::Suffix),
        3 => (word(), word()).prop_map(|(start, end)| Pattern::Around(start, end)),
        1 => Just(Pattern::Present),
    ]
}

fn exact(words: &'static [&'static str]) -> impl Strategy<Value = Pattern> {
    prop::sample::select(words).prop_map(|word| Pattern::Exact(word.to_owned()))
}

fn condition(field: Field) -> BoxedStrategy<Condition> {
    let any_of = match field {
        Field::Method => prop::collection::vec(exact(&["GET", "POST"]), 1..3).boxed(),
        Field::Alpn => prop::collection::vec(exact(&["h2", "http/1.1", "x"]), 1..3).boxed(),
        _ => prop::collection::vec(pattern(), 1..3).boxed(),
    };
    any_of.prop_map(move |any_of| Condition { field: field.clone(), any_of }).boxed()
}

/// How many conditions the kernel side needs for it.
fn parts(condition: &Condition) -> usize {
    let parts = |pattern: &Pattern| if matches!(pattern, Pattern::Around(..)) { 2 } else { 1 };
    condition.any_of.iter().map(parts).max().unwrap_or(0)
}

fn rule() -> impl Strategy<Value = Request> {
    let http = vec![
        Field::Method,
        Field::Path,
        Field::Host,
        Field::Header("x-a".into()),
        Field::Header("x-b".into()),
        Field::Cookie("x-a".into()),
        Field::Cookie("X-a".into()),
    ];
    let fields = prop_oneof![
        4 => prop::sample::subsequence(http, 0..4).prop_shuffle(),
        1 => prop::sample::subsequence(vec![Field::ServerName, Field::Alpn], 0..3),
    ];
    let conditions =
        fields.prop_flat_map(|fields| fields.into_iter().map(condition).collect::<Vec<_>>()).prop_map(|mut all| {
            while all.iter().map(parts).sum::<usize>() > 4 {
                all.pop();
            }
            all
        });
    let when = prop::sample::select(vec![Level::Always, Level::Always, Level::Busy, Level::Overloaded]);
    let mode = prop::sample::select(vec![Mode::Enforce, Mode::Enforce, Mode::Enforce, Mode::Monitor]);
    (conditions, when, mode).prop_map(|(conditions, when, mode)| Request {
        conditions,
        when,
        mode,
        ..Request::default()
    })
}

fn listener(requests: Vec<Request>) -> Listener {
    let address = "0.0.0.0:80".parse().expect("an address");
    let clients = vec![fief_policy::Client::new(From::Any, "all")];
    Listener { admit: true, clients, requests, ..Listener::new("web", address) }
}

fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop::option::weighted(0.8, word().prop_map(String::into_bytes))
}

/// A request as it is compared, whether or not some text could say it.
fn fields() -> impl Strategy<Value = Fields> {
    let named = || {
        let name = prop::sample::select(vec!["x-a", "x-b", "X-a", "x-c"]).prop_map(|name| name.as_bytes().to_vec());
        prop::collection::vec((name, word().prop_map(String::into_bytes)), 0..4)
    };
    let method =
        prop::option::weighted(0.9, prop::sample::select(vec![b"GET".to_vec(), b"POST".to_vec(), b"PUT".to_vec()]));
    let alpn =
        prop::collection::vec(prop::sample::select(vec![b"h2".to_vec(), b"http/1.1".to_vec(), b"y".to_vec()]), 0..3);
    (method, value(), value(), named(), named(), value(), alpn).prop_map(
        |(method, path, host, headers, cookies, server_name, alpn)| Fields {
            method,
            path,
            host,
            headers,
            cookies,
            server_name,
            alpn,
            ..Fields::default()
        },
    )
}

/// One that meets all conditions of a rule, if that is possible at all.
fn made_for(rule: &Request) -> Fields {
    let mut fields = Fields::default();
    for condition in &rule.conditions {
        let value = match &condition.any_of[0] {
            Pattern::Exact(text) | Pattern::Prefix(text) | Pattern::Suffix(text) => text.clone(),
            Pattern::Around(start, end) => format!("{start}{end}"),
            Pattern::Present => "anything".to_owned(),
        };
        let value = value.into_bytes();
        match &condition.field {
            Field::Method => fields.method = Some(value),
            Field::Path => fields.path = Some(value),
            Field::Host => fields.host = Some(value),
            Field::ServerName => fields.server_name = Some(value),
            Field::Alpn => fields.alpn = vec![value],
            Field::Header(name) => fields.headers.push((name.clone().into_bytes(), value)),
            Field::Cookie(name) => fields.cookies.push((name.clone().into_bytes(), value)),
        }
    }
    fields
}

fn agree(listener: &Listener, table: &RequestTable, fields: &Fields, level: Level) -> Result<(), TestCaseError> {
    let from = "10.0.0.1".parse().expect("an address");
    let verdict = listener.evaluate(from, Some(fields), level).expect("there is a catch-all");
    let found = table.lookup(SECRET, fields, level);
    let (rule, trial) = match &verdict.request {
        Some(request) => (request.rule.map(|(at, _)| at as u32), request.trial.map(|(at, _)| at as u32)),
        None => (None, None),
    };
    prop_assert_eq!((found.rule, found.trial), (rule, trial), "{:?} at {:?}", fields, level);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_tables_find_the_first_rule_that_matches(
        rules in prop::collection::vec(rule(), 0..12), requests in prop::collection::vec(fields(), 8)
    ) {
        let listener = listener(rules);
        let table = listener.request_table(SECRET);
        let made: Vec<Fields> = listener.requests.iter().map(made_for).collect();
        for fields in requests.iter().chain(&made) {
            for level in [Level::Always, Level::Busy, Level::Overloaded] {
                agree(&listener, &table, fields, level)?;
            }
        }
    }

    #[test]
    fn the_secret_decides_nothing_but_where_patterns_lie(
        rules in prop::collection::vec(rule(), 0..12), fields in fields(), secret in any::<[u64; 2]>()
    ) {
        let listener = listener(rules);
        let (one, other) = (listener.request_table(SECRET), listener.request_table(secret));
        prop_assert_eq!(one.lookup(SECRET, &fields, Level::Busy), other.lookup(secret, &fields, Level::Busy));
        prop_assert_eq!(one.shapes, other.shapes);
    }

    #[test]
    fn a_shape_is_listed_where_its_first_rule_is(rules in prop::collection::vec(rule(), 0..12)) {
        let table = listener(rules).request_table(SECRET);
        prop_assert!(table.shapes.is_sorted_by_key(|shape| shape.first_rule));
        for (index, shape) in table.shapes.iter().enumerate() {
            let first = table.patterns.iter().filter(|pattern| usize::from(pattern.shape) == index).map(|p| p.rule).min();
            prop_assert_eq!(first, Some(shape.first_rule));
            prop_assert!(shape.conditions.len() <= 4);
        }
        prop_assert!(table.bloom.len().is_power_of_two());
    }
}

#[test]
fn many_rules_of_one_shape_are_one_look() {
    let text = "version = 1\n[container.a]\n[listener.web]\naddress = \"0.0.0.0:80\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"a\"\n";
    let mut policy = parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let web = &mut policy.listeners[0];
    web.requests = (0..20_000)
        .map(|n| Request {
            conditions: vec![Condition { field: Field::Path, any_of: vec![Pattern::Exact(format!("/{n}"))] }],
            refusal: Some(Refusal::Reset),
            ..Request::default()
        })
        .collect();
    web.admit = true;
    let table = web.request_table(SECRET);
    assert_eq!((table.shapes.len(), table.patterns.len()), (1, 20_000));
    let fields = Fields::of_http(b"GET //19999?x HTTP/1.1\r\n\r\n");
    assert_eq!(table.lookup(SECRET, &fields, Level::Always).rule, Some(19_999));
    let from = "192.0.2.1".parse().expect("an address");
    let verdict = web.evaluate(from, Some(&fields), Level::Always).expect("a verdict");
    assert_eq!(verdict.request.map(|request| request.reason), Some(Reason::RequestRefused));
}
