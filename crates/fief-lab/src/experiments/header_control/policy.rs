// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies of Fief's ways. Pure.
//!
//! Refused clients are not punished here (no `penalty`): each refusal is carried out, so that its cost shows.

use super::steps::{Bucket, Setting};
use crate::experiments::overload::PORT;
use fief_testkit::{Client, Family};

/// Limits by connection, for the low clients' addresses, and by URL, for everybody.
pub fn limits(setting: &Setting) -> String {
    let low = Client::Low.prefix(Family::V4);
    let Bucket { per_second, burst } = setting.crowd;
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.shop]\n\n[container.crowd]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{PORT}\"\nclasses = \"listeners\"\n\n\
         [[listener.web.client]]\nfrom = [\"{low}\"]\ncontainer = \"crowd\"\n\
         syn = {{ rate = {per_second}, burst = {burst} }}\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n\n{}\n{}",
        rule("/limited/*", "crowd", setting.crowd),
        rule("/capped/*", "crowd", setting.capped),
    )
}

/// URLs of high priority, without a limit and with one; the rest is served when nothing else is there.
pub fn priorities(setting: &Setting) -> String {
    let rated = |place: usize| rule(&format!("/rated-{place}/*"), "gold", setting.rated[place]);
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.gold]\ncpu.priority = 200\n\n[container.browse]\ncpu.priority = 0\n\n\
         [listener.web]\naddress = \"0.0.0.0:{PORT}\"\nclasses = \"listeners\"\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"browse\"\n\n\
         [[listener.web.request]]\npath = [\"/gold/*\"]\ncontainer = \"gold\"\n\n{}\n{}",
        rated(0),
        rated(1),
    )
}

fn rule(path: &str, container: &str, Bucket { per_second, burst }: Bucket) -> String {
    format!(
        "[[listener.web.request]]\npath = [\"{path}\"]\ncontainer = \"{container}\"\n\
         rate = {{ per-second = {per_second}, burst = {burst} }}\nrefuse = \"503\"\n"
    )
}
