// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any text gets an answer: a policy whose tables compile and are total, or errors that can be shown.
//!
//!     cargo +nightly fuzz run policy_parse fuzz/corpus/policy_parse examples -- -dict=fuzz/policy.dict -max_total_time=60

#![no_main]

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
