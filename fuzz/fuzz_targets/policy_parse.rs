// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any text gets an answer: a policy whose tables compile and are total, or errors that can be shown.
//!
//!     cargo +nightly fuzz run policy_parse fuzz/corpus/policy_parse examples -- -dict=fuzz/policy.dict -max_total_time=60

#![no_main]

use std::net::IpAddr;

use fief_policy::{Fields, Level, Listener};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match fief_policy::parse(text, "fuzz.toml") {
    Ok(policy) => {
        for listener in &policy.listeners {
            let table = listener.table();
            assert!(table.classes.len() <= 32);
            for address in ["::", "::ffff:0.0.0.0", "10.1.2.3", "255.255.255.255", "2001:db8::1"] {
                let address = address.parse().expect("an address");
                assert!(table.lookup(address).is_some(), "{address} has no class");
            }
            requests_are_found(listener);
        }
    }
    Err(errors) => {
        assert!(!errors.is_empty());
        assert!(!errors.render(true).is_empty());
        assert_eq!(errors.to_json_lines().lines().count(), errors.len());
        for error in &errors {
            assert!(text.get(error.span.clone()).is_some(), "{error:?}");
        }
    }
});

/// What the tables find is what the rules say.
fn requests_are_found(listener: &Listener) {
    const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
    let table = listener.request_table(SECRET);
    assert!(table.shapes.len() <= 64 && table.names.len() <= 8);
    let from = IpAddr::from([10, 0, 0, 1]);
    let http = ["GET / HTTP/1.1\r\n\r\n", "POST /a/x.php HTTP/1.1\r\nHost: shop.example\r\nCookie: a=1\r\n\r\n"];
    let http = http.map(|text| Fields::of_http(text.as_bytes()));
    for fields in http.iter().chain([&Fields::of_tls(Some("shop.example"), &["h2"])]) {
        let verdict = listener.evaluate(from, Some(fields), Level::Overloaded).expect("a class");
        let Some(request) = verdict.request else { continue };
        let found = table.lookup(SECRET, fields, Level::Overloaded);
        assert_eq!(found.rule.map(|rule| rule as usize), request.rule.map(|(position, _)| position));
        assert_eq!(found.trial.map(|rule| rule as usize), request.trial.map(|(position, _)| position));
    }
}
