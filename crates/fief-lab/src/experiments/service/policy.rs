// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fifty policies, each of them another one: containers come, are renamed twice, and go; others are renamed below clients that
//! are being served; rules change. Pure.
//!
//! Who is asked for by which clients stays the same: high clients are `gold`'s, low ones `browse`'s, whatever these are called. The
//! middle ones are those of tenants, each of which has some of their addresses for two policies.

use super::{PORT, WATCHED};
use fief_testkit::{Client, Family};
use std::collections::BTreeMap;
use std::fmt::Write;

const BROWSE: &str = "browse";
/// The class of the clients that are in no other one.
const REST: &str = "rest";

/// A file that the server has and every policy refuses.
pub const REFUSED: &str = "closed";
/// A tenant is there in so many policies, in the first two of them with clients.
const TENANT_LASTS: usize = 4;
const WITH_CLIENTS: usize = 2;
/// Addresses of a tenant's clients; those of two tenants with clients differ.
const ADDRESSES: usize = 10;

/// The container that the server is at home in; all classes are below it, since its threads follow nowhere else.
pub fn home(number: usize) -> String {
    ["shop", "store"][number / 5 % 2].to_owned()
}

pub fn gold(number: usize) -> String {
    format!("{}/{}", home(number), gold_below(number))
}

pub fn browse(number: usize) -> String {
    format!("{}/{BROWSE}", home(number))
}

/// Whether a container with this path has no clients, whatever policy it is of.
pub fn is_quiet(path: &str) -> bool {
    path.contains("/past/")
}

/// The same policy, whose listeners' clients wait for a server that is started anew.
pub fn with_restart(text: &str) -> String {
    text.replace("\naddress = ", "\nrestart = \"10s\"\naddress = ")
}

fn gold_below(number: usize) -> &'static str {
    ["gold", "vip"][number / 3 % 2]
}

/// Of the tenants of this policy, each with its path below the server's home; the youngest first.
fn tenants(number: usize) -> Vec<(usize, String)> {
    let oldest = (number + 1).saturating_sub(TENANT_LASTS).max(1);
    let path = |tenant: usize| format!("{}/t{tenant}", ["tenants", "guests", "past", "past"][number - tenant]);
    (oldest..=number).rev().map(|tenant| (tenant, path(tenant))).collect()
}

/// What is below the server's home in the policy with this number, each with a name of the lab's own that it keeps.
fn below(number: usize) -> BTreeMap<String, String> {
    let stay = [("gold", gold_below(number)), (BROWSE, BROWSE), (REST, REST)];
    let stay = stay.map(|(name, path)| (name.to_owned(), path.to_owned()));
    stay.into_iter().chain(tenants(number).into_iter().map(|(tenant, path)| (format!("t{tenant}"), path))).collect()
}

/// Where each container of the policy before this one is under this one; those that end are not in it.
pub fn moved(number: usize) -> BTreeMap<String, String> {
    let (old, new) = (home(number - 1), home(number));
    let mut now = below(number);
    let stay = below(number - 1).into_iter().filter_map(|(name, path)| Some((path, now.remove(&name)?)));
    let stay = stay.map(|(was, is)| (format!("{old}/{was}"), format!("{new}/{is}")));
    stay.chain([(old.clone(), new.clone())]).collect()
}

pub fn text(number: usize) -> String {
    let mut text = "version = 1\n\n".to_owned();
    let mut line = |words: String| writeln!(text, "{words}").expect("a String takes everything");
    let home_now = home(number);
    let before = number.checked_sub(1);
    line(format!("[container.{home_now}]"));
    if let Some(was) = before.map(home).filter(|was| *was != home_now) {
        line(format!("was = \"{was}\""));
    }
    for (name, path) in below(number) {
        line(format!("[container.\"{home_now}/{path}\"]"));
        // who has another parent because that is renamed comes along
        let was = before.and_then(|before| {
            Some(format!("{}/{}", home(before), below(before).remove(&name).filter(|was| *was != path)?))
        });
        if let Some(was) = was {
            line(format!("was = \"{was}\""));
        }
    }
    line(format!("\n[listener.web]\naddress = \"0.0.0.0:{PORT}\"\nclasses = \"listeners\"\n"));
    let mut class = |from: &str, more: &str, container: &str| {
        line(format!("[[listener.web.client]]\nfrom = [\"{from}\"]\n{more}container = \"{container}\"\n"));
    };
    let syn = format!("syn = {{ rate = {} }}\n", 500_000 + number);
    class(&Client::High.prefix(Family::V4), &syn, &gold(number));
    class(&Client::Low.prefix(Family::V4), "", &browse(number));
    for (tenant, path) in tenants(number).into_iter().take(WITH_CLIENTS) {
        let first = tenant % WITH_CLIENTS * ADDRESSES + 1;
        let address = |at: usize| Client::Middle.address(Family::V4, at as u8);
        class(&format!("{}-{}", address(first), address(first + ADDRESSES - 1)), "", &format!("{home_now}/{path}"));
    }
    class("any", "", &format!("{home_now}/{REST}"));
    // in every second policy this one only watches
    let mode = ["enforce", "monitor"][number % 2];
    line(format!("[listener.watched]\naddress = \"0.0.0.0:{WATCHED}\"\nmode = \"{mode}\"\n"));
    line(format!("[[listener.watched.client]]\nfrom = [\"any\"]\ncontainer = \"{home_now}/{REST}\"\n"));
    line(format!("[[listener.watched.request]]\npath = \"/{REFUSED}\"\nrefuse = \"503\"\n"));
    let mut rule =
        |path: &str, verdict: &str| line(format!("[[listener.web.request]]\npath = \"{path}\"\n{verdict}\n"));
    // the refused file is ruled by another number in every second policy
    if number % 2 == 1 {
        rule(&format!("/only-{number}/*"), "refuse = \"reset\"");
    }
    rule(&format!("/{REFUSED}"), "refuse = \"503\"");
    rule("/rated/*", &format!("rate = {{ per-second = {} }}\nrefuse = \"503\"", 100 + number));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_another_one_and_refuses_the_same_file() {
        let mut all: Vec<String> = (0..=50).map(text).collect();
        assert!(all.iter().all(|text| text.contains("path = \"/closed\"\nrefuse = \"503\"")));
        all.dedup();
        assert_eq!(all.len(), 51);
    }

    #[test]
    fn all_classes_are_below_the_servers_home() {
        for number in 0..=50 {
            let text = text(number);
            let mut classes = text.lines().filter_map(|line| line.strip_prefix("container = \""));
            assert!(classes.all(|path| path.starts_with(&format!("{}/", home(number)))), "{text}");
        }
    }

    #[test]
    fn a_tenant_comes_is_renamed_twice_and_goes() {
        let at = |number: usize| below(number).get("t6").cloned();
        let path = |path: &str| Some(path.to_owned());
        let all = [None, path("tenants/t6"), path("guests/t6"), path("past/t6"), path("past/t6"), None];
        assert_eq!((5..=10).map(at).collect::<Vec<_>>(), all);
        assert!(text(7).contains("[container.\"store/guests/t6\"]\nwas = \"store/tenants/t6\""));
        assert!(text(8).contains("was = \"store/guests/t6\"") && !text(9).contains("/t6\"]\nwas"));
        assert_eq!(
            [6, 7, 8].map(|number| text(number).contains("container = \"store/") && text(number).contains("/t6\"\n\n")),
            [true, true, false],
            "its clients"
        );
    }

    #[test]
    fn what_the_server_serves_moves_with_its_parent_and_alone() {
        assert_eq!([4, 5].map(gold), ["shop/vip", "store/vip"]);
        assert!(text(5).contains("[container.store]\nwas = \"shop\""));
        assert!(!text(5).contains("was = \"shop/vip\""), "it comes along");
        // both at once
        assert_eq!([14, 15].map(gold), ["shop/gold", "store/vip"]);
        assert!(text(15).contains("[container.\"store/vip\"]\nwas = \"shop/gold\""));
        let moved = moved(15);
        let now = |path: &str| moved.get(path).map(String::as_str);
        assert_eq!(
            [now("shop"), now("shop/browse"), now("shop/gold")],
            [Some("store"), Some("store/browse"), Some("store/vip")]
        );
        assert_eq!([now("shop/past/t11"), now("shop/guests/t13")], [None, Some("store/past/t13")]);
    }
}
