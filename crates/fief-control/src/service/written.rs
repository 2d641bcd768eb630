// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a drop-in of ours says: the options of the `fief exec` that it starts its service by.
//!
//! Its words are Fief's own ([`quoted`](super::command_line::quoted)), so this reads no more than what that writes.

use std::path::Path;

use fief_bpf::{Error, ErrorKind, Result};

use super::command_line::{self, unquoted};
use super::unit_file::service_keys;
use super::{DropIn, SUFFIX};
use crate::bind;
use crate::exec::ExecOptions;

impl DropIn {
    /// The one that the unit with this cgroup starts by; `None`: it has none of ours, or the folder is no unit's.
    pub(crate) fn of_cgroup(folder: &Path) -> Option<Self> {
        let name = folder.file_name()?.to_str().filter(|name| name.ends_with(SUFFIX))?;
        let drop_in = Self::of(name, None).ok()?;
        // asked after the file, since most units have none; another user's folder can have any name
        (drop_in.own_text().ok()?.is_some() && bind::is_cgroup_of(name, folder)).then_some(drop_in)
    }

    /// The options of its `fief exec`.
    pub(crate) fn exec_options(&self) -> Result<ExecOptions> {
        let text = self.own_text()?.unwrap_or_default();
        exec_options(&text).ok_or_else(|| {
            let what = format!("cannot read what {} starts", self.path.display());
            Error::new(ErrorKind::Other, what).remedy(format!("write it again by `fief unit {}`", self.unit))
        })
    }
}

/// Of several commands all have the same options.
fn exec_options(text: &str) -> Option<ExecOptions> {
    let is_start = |key: &str| key == "ExecStart" || key == "ExecStartPre";
    let lines = service_keys(text).into_iter().filter(|(key, _)| is_start(key)).map(|(_, value)| value);
    let line = lines.into_iter().find(|value| !value.is_empty())?;
    let words = command_line::words(&line);
    let own = words.split(|word| word == "--").next()?;
    let is_substituted = !own.first()?.split('/').next()?.contains(':');
    let mut words = own.iter().map(|word| unquoted(word, is_substituted)).skip(1);
    (words.next()? == "exec").then_some(())?;
    let mut options = ExecOptions::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--here" => {}
            "--container" => options.container = Some(words.next()?),
            "--listener" => options.listeners.push(words.next()?),
            "--no-follow" => options.no_follow = true,
            "--argv0" => drop(words.next()?),
            _ => return None,
        }
    }
    Some(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(Option<String>, Vec<String>, bool)> {
        let text = format!("# Written\n[Unit]\nAfter=fief.service\n\n[Service]\n{line}\n");
        let ExecOptions { container, listeners, no_follow, .. } = exec_options(&text)?;
        Some((container, listeners, no_follow))
    }

    #[test]
    fn a_drop_in_tells_the_options_of_its_exec() {
        let all = "ExecStart=\nExecStart=-/usr/bin/fief exec --here --container shop/gold --listener web --listener api \
                   --no-follow -- /usr/sbin/nginx -g 'x' --container no";
        let both = ["web", "api"].map(str::to_owned).to_vec();
        assert_eq!(of(all), Some((Some("shop/gold".into()), both, true)));
        assert_eq!(
            of("ExecStart=\nExecStart=/opt/fief exec --here --argv0 web -- /bin/a"),
            Some((None, vec![], false))
        );
        let managed = "ExecStartPre=+/usr/bin/fief exec --here --container a -- true";
        assert_eq!(of(managed), Some((Some("a".into()), vec![], false)));
    }

    #[test]
    fn odd_names_are_read_as_they_were_written() {
        let quoted = r#"ExecStart=/usr/bin/fief exec --here --listener "a b\"\\" --container 100%%-$$a -- /bin/a"#;
        assert_eq!(of(quoted), Some((Some("100%-$a".into()), vec!["a b\"\\".into()], false)));
        let plain = "ExecStart=:/usr/bin/fief exec --here --container 100%%-$a -- /bin/a";
        assert_eq!(of(plain), Some((Some("100%-$a".into()), vec![], false)));
    }

    #[test]
    fn what_nobody_of_us_wrote_is_not_read() {
        assert_eq!(of("ExecStart=\nExecStart=/usr/sbin/nginx"), None);
        assert_eq!(of("ExecStart=/usr/bin/fief exec --here --later-option x -- a"), None);
        assert_eq!(of("Type=simple"), None);
    }
}
