// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever the text, the parser answers: a policy whose tables compile, or errors that can be shown.

mod example;

use fief_policy::{Policy, parse};
use proptest::prelude::*;

fn answers(text: &str) {
    match parse(text, "hostile.toml") {
        Ok(Policy { listeners, .. }) => {
            for listener in listeners {
                assert!(!listener.table().entries.is_empty());
                let table = listener.request_table([7, u64::MAX]);
                assert!(table.shapes.len() <= 64 && table.names.len() <= 8);
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            assert!(!errors.render(true).is_empty() && !errors.to_string().is_empty());
            assert_eq!(errors.to_json_lines().lines().count(), errors.len());
            for error in &errors {
                assert!(text.get(error.span.clone()).is_some(), "{error:?}");
                assert!(
                    !error.message.is_empty() && !error.expected.is_empty() && !error.remedy.is_empty(),
                    "{error:?}"
                );
                assert!(error.line >= 1 && error.column >= 1);
            }
        }
    }
}

/// Pieces of policies in any order.
fn soup() -> impl Strategy<Value = String> {
    let pieces = [
        "version",
        "=",
        " = ",
        "1",
        "\n",
        "\r\n",
        "[",
        "]",
        "[[",
        "]]",
        "container",
        "listener",
        ".",
        "\"",
        "'",
        "\"\"\"",
        "shop",
        "\"shop/gold\"",
        "web",
        "client",
        "from",
        "not-from",
        "[\"any\"]",
        "\"10.0.0.0/8\"",
        "\"::/0\"",
        ",",
        "{",
        "}",
        "cpu",
        "share",
        "\"60%\"",
        "address",
        "\"0.0.0.0:80\"",
        "\"[::]:80\"",
        "#",
        "mode",
        "true",
        "-1",
        "0x",
        "1e9",
        "1979-05-27",
        "ä",
        "\u{0}",
        "\u{feff}",
        "\\u",
        "accept",
        "syn",
        "rate",
        "gate",
        "copies",
        "request",
        "path",
        "\"/*.png\"",
        "header",
        "refuse",
        "\"503\"",
        "penalty",
        "\"5s\"",
        "overload",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..60).prop_map(|pieces| pieces.concat())
}

/// An example with some stretches cut out, doubled, exchanged or overwritten.
fn mutated() -> impl Strategy<Value = String> {
    let change = (any::<prop::sample::Index>(), 0usize..12, 0u8..4, "\\PC{0,4}");
    (prop::sample::select(example::examples()), prop::collection::vec(change, 1..6)).prop_map(|((_, text), changes)| {
        let mut characters: Vec<char> = text.chars().collect();
        for (at, length, how, insert) in changes {
            if characters.is_empty() {
                break;
            }
            let start = at.index(characters.len());
            let end = (start + length).min(characters.len());
            let piece: Vec<char> = characters[start..end].to_vec();
            match how {
                0 => drop(characters.drain(start..end)),
                1 => drop(characters.splice(start..start, piece)),
                2 => characters[start..end].reverse(),
                _ => drop(characters.splice(start..end, insert.chars())),
            }
        }
        characters.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_gets_an_answer(text in any::<String>()) {
        answers(&text);
    }

    #[test]
    fn any_pieces_of_a_policy_get_an_answer(text in soup()) {
        answers(&text);
    }

    #[test]
    fn any_mutation_of_a_policy_gets_an_answer(text in mutated()) {
        answers(&text);
    }

    #[test]
    fn any_value_of_any_key_gets_an_answer(
        key in prop::sample::select(vec![
            "address", "from", "container", "cpu.share", "memory.max", "network.max", "path", "host", "method", "alpn",
            "header.x", "cookie.x", "penalty", "retry-after", "rate.burst", "rate.cpu",
        ]),
        value in prop_oneof!["\\PC*", "[0-9a-f.:/%*\\[\\] -]{0,24}", "[0-9.]{0,40}(%|K|T|kbit|Tbit|ms|h)?"],
    ) {
        let value = serde_json::to_string(&value).expect("a text");
        let text = match key {
            "address" => format!("version = 1\n[listener.web]\naddress = {value}\n"),
            "from" => format!("version = 1\n[[listener.web.client]]\nfrom = [{value}]\n"),
            "container" => format!("version = 1\n[container.{value}]\n[[listener.web.client]]\ncontainer = {value}\n"),
            "cpu.share" | "memory.max" | "network.max" => format!("version = 1\n[container.shop]\n{key} = {value}\n"),
            _ => format!(
                "version = 1\n[container.a]\n[listener.web]\naddress = \"0.0.0.0:80\"\n[[listener.web.client]]\n\
                from = [\"any\"]\ncontainer = \"a\"\n[[listener.web.request]]\ncontainer = \"a\"\n{key} = {value}\n"
            ),
        };
        answers(&text);
    }
}

#[test]
fn deep_nesting_gets_an_answer() {
    answers(&"[".repeat(100_000));
    answers(&format!("a = {}", "[".repeat(100_000)));
    answers(&format!("a = {}", "{a=".repeat(100_000)));
    answers(&format!("{} = 1", vec!["a"; 100_000].join(".")));
}
