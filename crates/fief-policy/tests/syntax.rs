// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is not TOML, and how errors look to people and to programs.

mod marked;

use fief_policy::{Kind, parse};
use marked::refuses;

#[test]
fn refuses_a_value_without_quotes() {
    let text = "version = 1\n[container.shop]\ncpu.share = ⟦60%⟧\n";
    refuses(text, Kind::Syntax, "`60%` is not a value", "put it in double quotes");
}

#[test]
fn refuses_a_key_without_a_value() {
    let text = "version = 1\nmode =⟦⟧\n";
    let errors = parse(&text.replace(['⟦', '⟧'], ""), "test.toml").expect_err("no value");
    assert_eq!(errors.len(), 1, "{errors}");
    let text = "version = 1\nmode⟦⟧\n";
    refuses(text, Kind::Syntax, "key with no value", "key = value");
}

#[test]
fn refuses_a_key_or_header_that_stands_twice() {
    let text = "version = 1\n[container.shop]\ncpu.weight = 1\ncpu.⟦weight⟧ = 2\n";
    refuses(text, Kind::Syntax, "`weight` stands here for the second time", "remove one of the two");
    let text = "version = 1\n[container.shop]\n[container.⟦shop⟧]\n";
    refuses(text, Kind::Syntax, "`shop` stands here for the second time", "under one header");
}

#[test]
fn refuses_what_is_not_closed() {
    let text = "version = 1\nmode = \"enforce⟦⟧\n";
    refuses(text, Kind::Syntax, "invalid basic string", "close it on the line where it begins");
    refuses("version = 1\n[container.shop⟦⟧\n", Kind::Syntax, "unclosed table", "close it");
}

#[test]
fn says_how_to_write_a_backslash() {
    let text = "version = 1\npath = \"~ \\.php$\"\n";
    let errors = parse(text, "test.toml").expect_err("no such escape");
    assert!(errors.to_string().contains("\"*.php\" is a path that ends so"), "{errors}");
}

#[test]
fn reports_one_error_for_a_line_that_is_broken() {
    let text = "version = 1\n[[listener.web.client]]\nfrom = [\"any\"\ncontainer = \"a\"\n";
    let errors = parse(text, "test.toml").expect_err("the array is not closed");
    let syntax = errors.iter().filter(|error| error.kind == Kind::Syntax && error.line == 4);
    assert_eq!(syntax.count(), 1, "{errors}");
}

#[test]
fn misses_nothing_where_the_rest_could_not_be_read() {
    let text = "[container.shop]\ncpu.share = \"500%\"\n[listener.web]\nx = 5%\n";
    let errors = parse(text, "test.toml").expect_err("two errors");
    let kinds: Vec<_> = errors.iter().map(|error| error.kind).collect();
    assert_eq!(kinds, [Kind::Value, Kind::Syntax], "{errors}");
}

/// One of many sorts, each in its line.
const MANY: &str = "\
version = 1
mode = \"monitr\"
[container.shop]
cpu.share = \"60%\"
cpu.weight = 0
[container.big]
cpu.share = \"50%\"
[listener.web]
address = \"localhost:80\"
colour = \"red\"
[[listener.web.client]]
from = [\"10.0.0.1/8\", \"11.0.0.0/33\"]
container = \"shpo\"
[[listener.web.client]]
from = [\"12.0.0.0/8\"]
container = \"shop\"
[[listener.web.client]]
from = [\"12.1.0.0/16\"]
container = \"big\"
";

#[test]
fn reports_all_errors_of_a_file_in_its_order() {
    let errors = parse(MANY, "many.toml").expect_err("many errors");
    let found: Vec<_> = errors.iter().map(|error| (error.line, error.kind)).collect();
    let expected = [
        (2, Kind::Value),
        (5, Kind::Value),
        (7, Kind::Share),
        (9, Kind::Address),
        (10, Kind::UnknownKey),
        (12, Kind::Prefix),
        (12, Kind::Prefix),
        (13, Kind::UnknownContainer),
        (18, Kind::Unreachable),
        (18, Kind::CatchAll),
    ];
    assert_eq!(found, expected, "{errors}");
}

#[test]
fn shows_the_line_a_caret_what_was_expected_and_the_remedy() {
    let text = "version = 1\n[container.shop]\ncpu.share = \"60%\"\n[container.big]\ncpu.share = \"50%\"\n";
    let errors = parse(text, "two.toml").expect_err("110%");
    let page = "\
error: the shares of `big` and its siblings add up to 110%, but the machine has 100%
 --> two.toml:5:13
  |
5 | cpu.share = \"50%\"
  |             ^^^^^ expected shares of at most 100% in all
  |
 ::: two.toml:3:13
  |
3 | cpu.share = \"60%\"
  |             ----- `shop` is guaranteed 60%
  |
  = help: lower the shares by 10% in all

two.toml: 1 error; nothing was changed
";
    assert_eq!(errors.to_string(), page);
    assert_eq!(errors.render(false), page);
    assert!(errors.render(true).contains("\u{1b}["), "colours");
}

#[test]
fn shows_people_the_first_twenty_and_programs_all() {
    let text = format!("version = 1\n{}", (0..30).map(|n| format!("colour{n} = 1\n")).collect::<String>());
    let errors = parse(&text, "red.toml").expect_err("unknown keys");
    let all = errors.len();
    let page = errors.render(false);
    assert_eq!(page.matches("error: ").count(), 20, "{page}");
    assert!(page.contains(&format!("and {} more; `fief check --json` tells all of them\n", all - 20)), "{page}");
    assert!(page.ends_with(&format!("red.toml: {all} errors; nothing was changed\n")), "{page}");
    assert_eq!(errors.to_json_lines().lines().count(), all);
}

#[test]
fn gives_programs_one_object_a_line() {
    let errors = parse(MANY, "many.toml").expect_err("many errors");
    let lines = errors.to_json_lines();
    let objects: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(objects.len(), errors.len());
    let share = &objects[2];
    assert_eq!(share["file"], "many.toml");
    assert_eq!(share["kind"], "share");
    assert_eq!((&share["line"], &share["column"]), (&7.into(), &13.into()));
    assert_eq!(share["expected"], "shares of at most 100% in all");
    assert_eq!(share["remedy"], "lower the shares by 10% in all");
    assert_eq!(share["related"][0]["line"], 4);
    assert!(share["message"].as_str().is_some_and(|message| message.contains("110%")));
}

#[test]
fn counts_columns_in_characters_and_lines_in_any_ending() {
    let text = "version = 1\r\n[container.\"käse\"]\r\ncpu = { ⟦wäight⟧ = 1 }\r\n".replace("⟦wäight⟧", "⟦\"wäight\"⟧");
    refuses(&text, Kind::UnknownKey, "`cpu.wäight`", "write `cpu.weight`");
}

#[test]
fn keeps_the_place_of_an_error_in_a_very_long_line() {
    let text = format!("version = 1\n[container]\nshop.cpu = {{{}weight = 0 }}\n", " ".repeat(5000));
    let errors = parse(&text, "long.toml").expect_err("0 is no weight");
    let page = errors.to_string();
    assert!(page.contains("long.toml:3:5022"), "{page}");
    assert!(page.len() < 2000, "{page}");
}

#[test]
fn keeps_control_characters_from_the_terminal() {
    let text = "version = 1\n[container.shop]\n\"a\\u001b[31m\" = 1\n";
    let page = parse(text, "test.toml").expect_err("unknown key").to_string();
    assert!(!page.contains('\u{1b}'), "{page}");
    assert!(page.contains("\\u{1b}[31m"), "{page}");
}
