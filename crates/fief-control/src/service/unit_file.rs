// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service's unit file with its drop-ins: what it starts, and what its processes may not do.
//!
//! A running systemd is asked which files they are (`systemctl show`), since it also knows aliases. Elsewhere, as in an image of
//! another machine, they are looked for where systemd.unit(5) says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fief_bpf::{Context, Error, ErrorKind, Result};

use super::command_line::CommandLine;
use super::image;

/// Where units are, the first one first.
const FOLDERS: [&str; 6] = [
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// Keys of a service whose processes cannot reach the kernel's state as root can.
const HARDENED: [&str; 11] = [
    CAPABILITIES,
    "DynamicUser",
    "PrivateDevices",
    "PrivateUsers",
    "ProtectControlGroups",
    "ProtectKernelTunables",
    "ProtectSystem",
    "ReadOnlyPaths",
    "RootDirectory",
    "RootImage",
    "SystemCallFilter",
];

const CAPABILITIES: &str = "CapabilityBoundingSet";

/// A file and its text.
type Text = (PathBuf, String);

/// What is known of a service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnitFile {
    pub starts: Vec<CommandLine>,
    /// `User=` and its value, if that is not root.
    user: Option<String>,
    /// The key that keeps its processes from what `fief exec` does.
    hardened: Option<&'static str>,
    /// Drop-ins that are read after ours, and say what the unit starts.
    pub later: Vec<PathBuf>,
}

impl UnitFile {
    /// Reads a unit and its drop-ins but `own`. `root`: of its files; `None`: of this machine.
    pub(super) fn read(unit: &str, root: Option<&Path>, own: &Path) -> Result<Self> {
        let texts = match root {
            None if super::systemd_runs() => told_by_systemd(unit)?,
            _ => found(unit, root.unwrap_or(Path::new("/"))),
        };
        if texts.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no unit {unit}"))
                .remedy("`systemctl list-unit-files` shows those there are"));
        }
        let others = || texts.iter().filter(|(path, _)| path != own);
        let starts = |text: &str| service_keys(text).iter().any(|(key, _)| key == "ExecStart");
        let later = others().skip(1).filter(|(path, text)| path.file_name() > own.file_name() && starts(text));
        let later = later.map(|(path, _)| path.clone()).collect();
        Ok(Self { later, ..Self::parse(others().map(|(_, text)| text.as_str())) })
    }

    /// What keeps its processes from what `fief exec` does.
    pub(super) fn obstacle(&self) -> Option<&str> {
        let any = |is: fn(&CommandLine) -> bool| !self.starts.iter().all(is);
        let user = self.user.as_deref().filter(|_| any(CommandLine::is_as_root));
        user.or(self.hardened.filter(|_| any(CommandLine::is_privileged)))
    }

    fn parse<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, value) in texts.flat_map(service_keys) {
            let values = keys.entry(key.clone()).or_default();
            match value.is_empty() {
                // of capabilities it means none, and is no default
                true if key == CAPABILITIES => *values = vec![String::new()],
                true => values.clear(),
                false => values.push(value),
            }
        }
        let last = |key: &str| keys.get(key).and_then(|values| values.last()).map(String::as_str);
        let stops = |key: &str, value: &str| match key {
            CAPABILITIES => value != "~", // all but none
            // what Fief writes is below /run and /sys
            "ProtectSystem" => value == "strict",
            _ => !matches!(value, "no" | "false" | "off" | "0"),
        };
        let hardened = HARDENED.into_iter().find(|key| last(key).is_some_and(|value| stops(key, value)));
        let user = last("User").filter(|user| !matches!(*user, "root" | "0")).map(|user| format!("User={user}"));
        Self {
            starts: keys.get("ExecStart").into_iter().flatten().flat_map(|line| CommandLine::all(line)).collect(),
            user,
            hardened,
            later: Vec::new(),
        }
    }
}

/// Keys and values of the section `[Service]`; continued lines are one.
pub(super) fn service_keys(text: &str) -> Vec<(String, String)> {
    let (mut found, mut line, mut is_service) = (Vec::new(), String::new(), false);
    // comments within a continued line are left out of it
    let is_comment = |piece: &str| piece.trim_start().starts_with(['#', ';']);
    for piece in text.lines().filter(|piece| !is_comment(piece)) {
        if let Some(begin) = piece.strip_suffix('\\') {
            line.push_str(begin);
            line.push(' ');
            continue;
        }
        let whole = std::mem::take(&mut line) + piece;
        let whole = whole.trim();
        if whole.starts_with('[') {
            is_service = whole == "[Service]";
        } else if let Some((key, value)) = whole.split_once('=').filter(|_| is_service) {
            found.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    found
}

/// The files that systemd names. Their text is read here: what it prints of them (`systemctl cat`) tells a file's begin by a comment
/// that could be anybody's.
fn told_by_systemd(unit: &str) -> Result<Vec<Text>> {
    let asked = Command::new("systemctl")
        .args(["show", "--property=FragmentPath,DropInPaths", "--", unit])
        .stdin(Stdio::null())
        .output()
        .context(|| "cannot ask systemd by systemctl".into())?;
    let paths = paths(&String::from_utf8_lossy(&asked.stdout));
    Ok(paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap_or_default())).collect())
}

/// The unit's file, then its drop-ins in their order; none: there is no such unit.
fn paths(told: &str) -> Vec<PathBuf> {
    let of = |name: &str| told.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let file = Some(of("FragmentPath=")).filter(|path| !path.is_empty());
    file.into_iter().chain(of("DropInPaths=").split_whitespace()).map(PathBuf::from).collect()
}

/// The unit's file, then its drop-ins by their names; each from the first folder that has it.
fn found(unit: &str, root: &Path) -> Vec<Text> {
    let template = unit.split_once('@').map(|(name, _)| format!("{name}@.service"));
    let names: Vec<&str> = [Some(unit), template.as_deref()].into_iter().flatten().collect();
    let places = |ending: &'static str| {
        let of = move |name: &&str| FOLDERS.map(|folder| Path::new(folder).join(format!("{name}{ending}")));
        names.iter().flat_map(of)
    };
    let read = |path: &Path| fs::read_to_string(image::within(root, path)?);
    let Some((file, text)) = places("").find_map(|path| Some((root.join(&path), read(&path).ok()?))) else {
        return Vec::new();
    };
    let mut drop_ins = BTreeMap::new();
    for folder in places(".d") {
        let entries = image::within(root, &folder).and_then(fs::read_dir);
        for name in entries.into_iter().flatten().flatten().map(|entry| entry.file_name()) {
            let path = folder.join(&name);
            if path.extension().is_some_and(|ending| ending == "conf") {
                drop_ins.entry(name).or_insert(path);
            }
        }
    }
    let drop_ins = drop_ins.into_values().map(|path| (root.join(&path), read(&path).unwrap_or_default()));
    std::iter::once((file, text)).chain(drop_ins).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(unit: &UnitFile) -> Vec<&str> {
        unit.starts.iter().map(|start| start.program.as_str()).collect()
    }

    #[test]
    fn only_the_service_counts_and_an_empty_line_forgets_those_before() {
        let text = "[Unit]\nExecStart=/bin/no\n[Service]\nExecStart=/bin/a\nExecStart=\n# ExecStart=/bin/no\n\
                    ExecStart=/bin/b \\\n  # a remark\n  -x\nExecStart = /bin/c\n[Install]\nExecStart=/bin/no\n";
        let unit = UnitFile::parse([text].into_iter());
        assert_eq!(programs(&unit), ["/bin/b", "/bin/c"]);
        assert_eq!((unit.starts[0].arguments.as_slice(), unit.obstacle()), (&["-x".to_owned()][..], None));
    }

    #[test]
    fn who_is_not_root_or_may_less_is_found() {
        let of = |lines: &str| {
            let text = format!("[Service]\nExecStart=/bin/a\n{lines}\n");
            UnitFile::parse([text.as_str()].into_iter()).obstacle().map(str::to_owned)
        };
        assert_eq!(of("User=www-data").as_deref(), Some("User=www-data"));
        assert_eq!(of("ProtectControlGroups=yes").as_deref(), Some("ProtectControlGroups"));
        assert_eq!(of("User=root\nPrivateTmp=yes\nPrivateDevices=no"), None);
        assert_eq!(
            of("CapabilityBoundingSet=CAP_SYS_ADMIN\nCapabilityBoundingSet=").as_deref(),
            Some("CapabilityBoundingSet")
        );
        assert_eq!(of("CapabilityBoundingSet=\nCapabilityBoundingSet=~"), None, "that is all of them");
        assert_eq!(of("ProtectSystem=strict").as_deref(), Some("ProtectSystem"));
        assert_eq!(of("ProtectSystem=full"), None, "what Fief writes is elsewhere");
        assert_eq!(of("ReadOnlyPaths=/").as_deref(), Some("ReadOnlyPaths"));
        assert_eq!(of("ReadOnlyPaths=/\nReadOnlyPaths="), None);
        assert_eq!(of("SystemCallFilter=@system-service\nSystemCallFilter="), None);
    }

    #[test]
    fn a_drop_in_of_the_administrators_goes_before_that_of_the_package() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("lib/systemd/system/web@.service", "[Service]\nExecStart=/bin/web\n");
        write("lib/systemd/system/web@.service.d/a.conf", "[Service]\nExecStart=/bin/package\n");
        write("etc/systemd/system/web@.service.d/a.conf", "[Service]\nExecStart=\nExecStart=/bin/own %i\n");
        write("etc/systemd/system/web@1.service.d/zz-fief.conf", "[Service]\nExecStart=/bin/fief\n");
        let own = root.path().join("etc/systemd/system/web@1.service.d/zz-fief.conf");
        let unit = UnitFile::read("web@1.service", Some(root.path()), &own).expect("there");
        assert_eq!(programs(&unit), ["/bin/own"]);
        assert!(UnitFile::read("other.service", Some(root.path()), &own).is_err());
    }

    #[test]
    fn the_files_are_those_that_systemd_names() {
        let told =
            "FragmentPath=/lib/systemd/system/a.service\nDropInPaths=/etc/a.service.d/a.conf /run/a.service.d/b.conf\n";
        let expected = ["/lib/systemd/system/a.service", "/etc/a.service.d/a.conf", "/run/a.service.d/b.conf"];
        assert_eq!(paths(told), expected.map(PathBuf::from));
        assert!(paths("FragmentPath=\nDropInPaths=\n").is_empty());
    }

    #[test]
    fn links_of_an_image_lead_within_it() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("usr/lib/systemd/system");
        fs::create_dir_all(&folder).expect("made");
        fs::create_dir_all(root.path().join("etc/systemd/system")).expect("made");
        fs::write(folder.join("real.service"), "[Service]\nExecStart=/bin/real\n").expect("written");
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, root.path().join(at)).expect("linked");
        link("/usr/lib/systemd/system/real.service", "etc/systemd/system/web.service");
        link("/usr/lib", "lib");
        let own = root.path().join("etc/systemd/system/web.service.d/zz-fief.conf");
        for unit in ["web.service", "real.service"] {
            let file = UnitFile::read(unit, Some(root.path()), &own).expect("there");
            assert_eq!(programs(&file), ["/bin/real"], "{unit}");
        }
        // a file of this machine is none of the image's
        let outside = tempfile::NamedTempFile::with_suffix(".service").expect("a file");
        fs::write(outside.path(), "[Service]\nExecStart=/bin/no\n").expect("written");
        link(outside.path().to_str().expect("UTF-8"), "etc/systemd/system/out.service");
        assert!(UnitFile::read("out.service", Some(root.path()), &own).is_err());
    }

    #[test]
    fn a_drop_in_that_comes_later_and_starts_something_is_found() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("etc/systemd/system/a.service.d");
        fs::create_dir_all(&folder).expect("made");
        let write = |path: &Path, text: &str| fs::write(path, text).expect("written");
        write(&root.path().join("etc/systemd/system/a.service"), "[Service]\nExecStart=/bin/a\n");
        write(&folder.join("a.conf"), "[Service]\nExecStart=\nExecStart=/bin/b\n");
        let (own, later) = (folder.join("zz-fief.conf"), folder.join("zzz.conf"));
        let read = || UnitFile::read("a.service", Some(root.path()), &own).expect("there").later;
        assert!(read().is_empty());
        write(&later, "[Service]\nNice=5\n");
        assert!(read().is_empty());
        write(&later, "[Service]\nExecStart=\nExecStart=/bin/c\n");
        assert_eq!(read(), [later]);
    }
}
