// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What needs no privilege.

use crate::started::{Ended, SHOP, fief, for_everybody, policy};

const WRONG: &str = "version = 1\n[container.shop]\ncpu.share = \"160%\"\n";

#[test]
fn check_says_what_a_policy_means() {
    let shop = policy(SHOP);
    let ended = fief().arg("check").arg(shop.path()).ends();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains("no errors; 2 containers, 1 listener"), "{ended:?}");
    assert!(ended.stdout.contains("10.1.0.0/16"), "{ended:?}");
    assert_eq!(ended.stderr, "");
}

#[test]
fn check_accepts_every_example() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let entries =
        std::fs::read_dir(folder).expect("the folder of examples").map(|entry| entry.expect("an entry").path());
    let examples: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    assert!(examples.len() >= 7, "{examples:?}");
    let ended = fief().arg("check").args(&examples).ends();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    assert_eq!(ended.stdout.matches("no errors").count(), examples.len(), "{ended:?}");
}

#[test]
fn check_shows_an_error_in_its_line_and_ends_with_two() {
    let wrong = policy(WRONG);
    let ended = fief().arg("check").arg(wrong.path()).ends();
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""));
    assert!(ended.stderr.contains("3 | cpu.share = \"160%\""), "{ended:?}");
    assert!(ended.stderr.contains("^^^^^^"), "{ended:?}");
    assert!(ended.stderr.contains("expected"), "{ended:?}");
}

#[test]
fn check_goes_on_after_a_wrong_file() {
    let (wrong, shop) = (policy(WRONG), policy(SHOP));
    let ended = fief().arg("check").arg(wrong.path()).arg("/nonexistent").arg(shop.path()).ends();
    assert_eq!(ended.code, 2, "an error in a policy outweighs a file that is not there");
    assert!(ended.stderr.contains("cannot read the policy /nonexistent: No such file"), "{ended:?}");
    assert!(ended.stdout.contains("no errors"), "{ended:?}");
}

#[test]
fn check_tells_programs_one_object_a_line() {
    let (wrong, shop) = (policy(WRONG), policy(SHOP));
    let ended = fief().args(["check", "--json"]).arg(wrong.path()).arg(shop.path()).ends();
    assert_eq!((ended.code, ended.stderr.as_str()), (2, ""));
    let objects = ended.objects();
    assert_eq!(objects.len(), 2, "{ended:?}");
    assert_eq!((&objects[0]["kind"], &objects[0]["line"]), (&"value".into(), &3.into()), "{ended:?}");
    assert_eq!((&objects[1]["valid"], &objects[1]["policy"]["listeners"][0]["name"]), (&true.into(), &"web".into()));
}

#[test]
fn check_reads_standard_input() {
    let ended = fief().args(["check", "-"]).given(WRONG);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("<standard input>:3"), "{ended:?}");
}

const GUARDED: &str = r#"
version = 1
[container."shop/gold"]
[container."shop/browse"]
[container."shop/cgi"]
[listener.web]
address = "0.0.0.0:80"
queue = false
[[listener.web.client]]
from = ["10.1.0.0/16"]
container = "shop/gold"
[[listener.web.client]]
from = ["any"]
container = "shop/browse"
syn = { rate = 300, burst = 50 }
[[listener.web.request]]
path = "/cgi-bin/*"
header = { "user-agent" = "Bad*" }
refuse = "503"
[[listener.web.request]]
path = "/cgi-bin/*"
container = "shop/cgi"
[[listener.web.request]]
path = "/heavy"
when = "busy"
refuse = "drop"
"#;

#[test]
fn explain_tells_from_the_policy_alone_which_rule_matches() {
    let file = policy(GUARDED);
    let explain = |words: &[&str]| {
        let ended = fief().arg("explain").args(["--policy"]).arg(file.path()).args(words).ends();
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{words:?}");
        ended
    };
    let first = explain(&["--json", "--from", "10.1.2.3", "--request", "GET /cgi-bin/x"]).objects().remove(0);
    assert_eq!((&first["client_rule"], &first["request_rule"]), (&1.into(), &2.into()), "{first}");
    assert_eq!((&first["container"], &first["refusal"]), (&"shop/cgi".into(), &serde_json::Value::Null), "{first}");
    let bad = ["--request", "GET /a/../cgi-bin/x HTTP/1.0", "--header", "User-Agent: Badger"];
    let bad = explain(&[&["--json", "--from", "192.0.2.1"][..], &bad].concat()).objects().remove(0);
    assert_eq!((&bad["client_rule"], &bad["request_rule"]), (&2.into(), &1.into()), "{bad}");
    assert_eq!((&bad["reason"], &bad["refusal"]), (&"request-refused".into(), &"503".into()), "{bad}");
    assert_eq!(bad["because"][0]["value"], "/cgi-bin/x", "{bad}");
    let heavy = |level: &str| {
        let words = ["--json", "--from", "10.1.2.3", "--request", "GET /heavy", "--level", level];
        explain(&words).objects().remove(0)["refusal"].clone()
    };
    assert_eq!((heavy("always"), heavy("busy")), (serde_json::Value::Null, "drop".into()));
    let page = explain(&["--from", "192.0.2.1"]).stdout;
    assert!(page.contains("client rule 2: container shop/browse, at most 300 connection requests"), "{page}");
    assert!(page.ends_with("its connection belongs to shop/browse\n"), "{page}");
}

#[test]
fn explain_names_the_remedy_where_it_lacks_something() {
    let file = policy(GUARDED);
    let explain = |words: &[&str]| fief().args(["explain", "--policy"]).arg(file.path()).args(words).ends();
    let elsewhere = explain(&["--from", "10.1.2.3", "--to", "10.9.9.9:81"]);
    assert!(elsewhere.stderr.contains("no listener of the policy is at 10.9.9.9:81"), "{elsewhere:?}");
    let unknown = explain(&["--from", "10.1.2.3", "wbe"]);
    assert!(unknown.stderr.contains("no listener is called wbe; did you mean web? the policy has web"), "{unknown:?}");
    for words in [&["--request", "GET /"][..], &["--from", "nowhere"], &["--follow", "--from", "10.1.2.3"]] {
        assert_eq!(fief().arg("explain").args(words).ends().code, 2, "{words:?}");
    }
    let address = explain(&["--from", "10.1.2.3", "--request", "/x"]);
    assert!(
        address.code == 2 && address.stderr.contains("begins with a method: write --request 'GET /x'"),
        "{address:?}"
    );
    let nothing = fief().args(["explain", "--from", "10.1.2.3"]).ends();
    assert!(nothing.stderr.starts_with("fief: nothing is in force"), "{nothing:?}");
}

#[test]
fn probe_says_once_that_it_needs_root() {
    let mut probe = std::process::Command::new("setpriv");
    let is_root = nix::unistd::geteuid().is_root();
    let folder = tempfile::tempdir().expect("a folder");
    let program = for_everybody(folder.path());
    if is_root {
        probe.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    let probed = crate::started::Ended::from(probe.arg(program).arg("probe").output().expect("setpriv starts"));
    assert_eq!((probed.code, probed.stdout.matches("run as root").count()), (1, 1), "{probed:?}");
    assert!(!probed.stdout.contains("use a kernel of 6.12"), "{probed:?}");
}

#[test]
fn reads_with_nothing_in_force_name_the_remedy() {
    for words in [
        ["ls", "--json"],
        ["show", "shop"],
        ["explain", "--json"],
        ["explain", "--follow"],
        ["usage", "--json"],
        ["top", "--plain"],
    ] {
        let ended = fief().args(words).ends();
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{words:?}");
        assert!(ended.stderr.starts_with("fief: nothing is in force"), "{ended:?}");
        assert!(ended.stderr.contains("`fief apply FILE`"), "{ended:?}");
    }
}

#[test]
fn apply_changes_nothing_for_a_wrong_policy() {
    let wrong = policy(WRONG);
    let ended = fief().arg("apply").arg(wrong.path()).ends();
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("nothing was changed"), "{ended:?}");
}

#[test]
fn run_fails_with_codes_that_no_server_has() {
    let (shop, wrong) = (policy(SHOP), policy(WRONG));
    let code = |policy: &std::path::Path, server: &str| fief().arg("run").arg(policy).args(["--", server]).ends().code;
    assert_eq!(code(shop.path(), "no-such-server-anywhere"), 127);
    assert_eq!(code(shop.path(), "/etc/passwd"), 126);
    assert_eq!(code(wrong.path(), "true"), 125);
    assert_eq!(code("/nonexistent".as_ref(), "true"), 125);
    assert_eq!(fief().args(["run", "--no-such-option"]).ends().code, 125);
    assert_eq!(fief().args(["run", "--help"]).ends().code, 0);
}

/// The server would not take them, and their clients would wait for ever.
#[test]
fn run_refuses_sockets_that_were_passed_to_it() {
    let shop = policy(SHOP);
    let mut command = std::process::Command::new("sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" run \"$1\" -- true";
    command.args(["-c", script, env!("CARGO_BIN_EXE_fief")]).arg(shop.path());
    let ended = Ended::from(command.output().expect("sh starts"));
    assert_eq!(ended.code, 125, "{ended:?}");
    assert!(ended.stderr.contains("LISTEN_FDS") && ended.stderr.contains("`fief exec --here`"), "{ended:?}");
}

#[test]
fn wrong_usage_ends_with_two() {
    for words in [&[][..], &["fly"], &["top", "--interval", "0"], &["usage", "--count", "3"], &["bind", "0", "shop"]] {
        let ended = fief().args(words).ends();
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{words:?}");
        assert!(ended.stderr.contains("Usage") || ended.stderr.contains("error"), "{ended:?}");
    }
}

#[test]
fn schema_is_a_json_schema() {
    let ended = fief().arg("schema").ends();
    let schema: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(schema["title"], "Fief policy");
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = fief().args(["completions", shell]).ends();
        assert_eq!(ended.code, 0);
        assert!(ended.stdout.contains("usage") && ended.stdout.contains("manage"), "{shell}");
    }
}

#[test]
fn man_writes_a_page_for_each_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("man1");
    assert_eq!(fief().arg("man").arg(&pages).ends().code, 0);
    for page in ["fief.1", "fief-run.1", "fief-top.1", "fief-lab.1"] {
        let text = std::fs::read_to_string(pages.join(page)).expect(page);
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!pages.join("fief-man.1").exists(), "hidden commands have no page");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let code = fief().arg("schema").unread();
    assert_eq!(code, 0);
}
