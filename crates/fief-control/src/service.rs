// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A systemd service under Fief: a drop-in by which each of its starts goes through `fief exec`, so that a restart does not leave
//! the policy.
//!
//! A service whose processes are not root, or may less than root, cannot be started so. It is managed before it starts: systemd runs
//! `fief exec` as root in the service's cgroup (`ExecStartPre=+`), and what comes then has its home. It has no shim: requests wait
//! in queues, and `classes = "listeners"` has no effect.

mod command_line;
mod image;
mod stranded;
mod unit_file;
mod written;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fief_bpf::{Context, Error, ErrorKind, Result};

use command_line::quoted;
use unit_file::UnitFile;

/// After all others (`override.conf` is `systemctl edit`'s): what they start is what this one starts under Fief.
const NAME: &str = "zz-fief.conf";
const FOLDER: &str = "etc/systemd/system";
const SUFFIX: &str = ".service";
/// Begin of a file that is ours to change.
const MARK: &str = "# Written by `fief unit`";

/// Whether systemd runs this machine.
pub(crate) fn systemd_runs() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// A service, and the drop-in by which it starts under Fief.
#[derive(Debug)]
pub struct DropIn {
    unit: String,
    root: Option<PathBuf>,
    path: PathBuf,
}

/// How the service starts.
#[derive(Debug, Clone, Default)]
pub struct DropInOptions {
    /// The program `fief`.
    pub fief: PathBuf,
    /// Words for `fief exec`.
    pub words: Vec<String>,
}

/// The text of a drop-in.
#[derive(Debug, PartialEq, Eq)]
pub struct DropInText {
    pub text: String,
    /// What whoever asked for it should know.
    pub notes: Vec<String>,
}

/// What became of a drop-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Made,
    Replaced,
    Removed,
    /// It was there, or away, already.
    Nothing,
}

impl DropIn {
    /// `unit`: its name, with or without `.service`. `root`: of its files; `None`: of this machine.
    pub fn of(unit: &str, root: Option<&Path>) -> Result<Self> {
        // systemd's own letters; `*`, `?` and `[` would stand for the names of others
        let is_letter = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
        let is_name = !unit.is_empty() && !unit.starts_with(['.', '-']) && unit.chars().all(is_letter);
        let unit = if unit.ends_with(SUFFIX) { unit.to_owned() } else { format!("{unit}{SUFFIX}") };
        if !is_name || is_of_another_kind(&unit) {
            return Err(Error::new(ErrorKind::Other, format!("{unit} is no name of a service")));
        }
        let below = Path::new(FOLDER).join(format!("{unit}.d")).join(NAME);
        let path = match root {
            None => Path::new("/").join(below),
            Some(root) => image::to_be(root, &below).context(|| format!("cannot look into {}", root.display()))?,
        };
        Ok(Self { unit, root: root.map(Path::to_owned), path })
    }

    /// The whole name.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// Where it is, or would be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it has to be, by the unit's files as they are now.
    pub fn text(&self, options: &DropInOptions) -> Result<DropInText> {
        let Self { unit, .. } = self;
        let file = UnitFile::read(unit, self.root.as_deref(), &self.path)?;
        if file.starts.is_empty() {
            return Err(Error::new(ErrorKind::Other, format!("{unit} has no ExecStart, so it starts no server")));
        }
        let is_ours = |program: &str| Path::new(program.trim_matches(['"', '\''])).file_name() == Some("fief".as_ref());
        if file.starts.iter().any(|start| is_ours(&start.program)) {
            return Err(Error::new(ErrorKind::Exists, format!("{unit} starts `fief` itself, so it has its own way")));
        }
        let wrapper = |is_substituted: bool| -> Vec<String> {
            let fief = options.fief.to_string_lossy();
            let own = [fief.as_ref(), "exec", "--here"].into_iter().chain(options.words.iter().map(String::as_str));
            own.map(|word| quoted(word, is_substituted)).collect()
        };
        let comes_later = |path: &PathBuf| {
            format!(
                "{} is read after {NAME} and says what {unit} starts: it starts without Fief; rename it",
                path.display()
            )
        };
        let mut notes: Vec<String> = file.later.iter().map(comes_later).collect();
        let mut lines = String::new();
        match file.obstacle() {
            Some(key) => {
                let manages = format!("{} -- true\n", wrapper(true).join(" "));
                lines.push_str(&format!("ExecStartPre=+{manages}"));
                // where the CPU is divided by cgroups of version 1, what starts later is not in them by itself
                lines.push_str(&format!("ExecStartPost=-+{manages}"));
                notes.push(format!(
                    "{unit} is managed before it starts, since {key} keeps its own processes from doing it; its requests wait in \
                     queues, but it has no shim: classes = \"listeners\" has no effect"
                ));
            }
            None => {
                lines.push_str("ExecStart=\n");
                for start in &file.starts {
                    lines.push_str(&format!("ExecStart={}\n", start.under(&wrapper(start.is_substituted()))));
                }
            }
        }
        let text = format!(
            "{MARK}, after the unit's own ExecStart: run it again when that changes.\n# `fief unit {unit} --undo` removes it.\n\
             [Unit]\nWants=fief.service\nAfter=fief.service\n\n[Service]\n{lines}"
        );
        Ok(DropInText { text, notes })
    }

    /// Writes it, and has systemd read it. Errors: [`ErrorKind::Exists`] if somebody else has written a file there.
    pub fn write(&self, text: &str) -> Result<Change> {
        let before = self.own_text()?;
        let change = match before {
            Some(before) if before == text => Change::Nothing,
            Some(_) => Change::Replaced,
            None => Change::Made,
        };
        if change != Change::Nothing {
            let what = || format!("cannot write {}", self.path.display());
            fs::create_dir_all(self.folder()).context(what)?;
            // systemd never reads half of it
            let aside = self.aside();
            // one that was killed may have left it
            if_there(fs::remove_file(&aside)).context(what)?;
            // nobody's link is followed: an image may have one there that leads out of it
            let written = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&aside);
            written
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .and_then(|()| fs::rename(&aside, &self.path))
                .context(what)?;
        }
        // also of what was there: one that was killed may have written it, and told nobody
        self.reload().map(|()| change)
    }

    /// Removes it, and has systemd read that. Errors: as for writing.
    pub fn remove(&self) -> Result<Change> {
        let was_there = self.own_text()?.is_some();
        // one that was killed may have left either
        for path in [&self.aside(), &self.path] {
            if_there(fs::remove_file(path)).context(|| format!("cannot remove {}", path.display()))?;
        }
        // others may have drop-ins there
        let _ = fs::remove_dir(self.folder());
        // as above
        self.reload()?;
        Ok(if was_there { Change::Removed } else { Change::Nothing })
    }

    /// Whether systemd was told, and the next start of the unit goes by the files.
    pub fn is_of_running_systemd(&self) -> bool {
        self.root.is_none() && systemd_runs()
    }

    fn folder(&self) -> &Path {
        self.path.parent().expect("the path was joined of a folder and a name")
    }

    /// Where the text is until it is whole.
    fn aside(&self) -> PathBuf {
        self.path.with_extension("tmp")
    }

    fn own_text(&self) -> Result<Option<String>> {
        let path = self.path.display();
        match fs::read_to_string(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Ok(text) if !text.starts_with(MARK) => Err(Error::new(
                ErrorKind::Exists,
                format!("{path} was not written by `fief unit`, and is left as it is"),
            )
            .remedy("move it away")),
            read => read.map(Some).context(|| format!("cannot read {path}")),
        }
    }

    fn reload(&self) -> Result<()> {
        if !self.is_of_running_systemd() {
            return Ok(());
        }
        let told = Command::new("systemctl").arg("daemon-reload").stdin(Stdio::null()).status();
        match told.context(|| "cannot tell systemd by systemctl".into())?.success() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Other, "systemd could not read its units again")
                .remedy("`systemctl daemon-reload` tells why")),
        }
    }
}

/// What was not there needs no removing.
fn if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Kinds of units that start no server.
fn is_of_another_kind(unit: &str) -> bool {
    const KINDS: [&str; 7] = ["socket", "target", "timer", "slice", "scope", "mount", "path"];
    let name = unit.trim_end_matches(SUFFIX);
    name.rsplit_once('.').is_some_and(|(_, kind)| KINDS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str =
        "[Service]\nType=forking\nExecStartPre=/usr/sbin/nginx -t\nExecStart=-/usr/sbin/nginx -g 'daemon on;'\n";

    struct Image {
        root: tempfile::TempDir,
    }

    impl Image {
        fn new(unit: &str) -> Self {
            let root = tempfile::tempdir().expect("a folder");
            let folder = root.path().join("lib/systemd/system");
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("nginx.service"), unit).expect("written");
            Self { root }
        }

        fn drop_in(&self) -> DropIn {
            DropIn::of("nginx", Some(self.root.path())).expect("a name")
        }

        fn text(&self) -> DropInText {
            let words = ["--container", "shop"].map(str::to_owned).into();
            self.drop_in().text(&DropInOptions { fief: "/usr/bin/fief".into(), words }).expect("a text")
        }
    }

    #[test]
    fn each_start_goes_through_fief() {
        let image = Image::new(UNIT);
        let DropInText { text, notes } = image.text();
        assert!(text.contains("After=fief.service\n"), "{text}");
        let service = &text[text.find("[Service]").expect("a section")..];
        let start = "ExecStart=-/usr/bin/fief exec --here --container shop -- /usr/sbin/nginx -g 'daemon on;'";
        assert_eq!(service, format!("[Service]\nExecStart=\n{start}\n"));
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn a_service_that_is_not_root_is_managed_before_it_starts() {
        let image = Image::new(&format!("{UNIT}User=www-data\n"));
        let DropInText { text, notes } = image.text();
        let service = &text[text.find("[Service]").expect("a section")..];
        let manages = "/usr/bin/fief exec --here --container shop -- true\n";
        assert_eq!(service, format!("[Service]\nExecStartPre=+{manages}ExecStartPost=-+{manages}"));
        assert!(notes[0].contains("User=www-data"), "{notes:?}");
    }

    #[test]
    fn a_prefix_lifts_what_systemd_says_that_it_lifts() {
        let is_before = |prefix: &str, key: &str| {
            let image = Image::new(&format!("[Service]\n{key}\nExecStart={prefix}/usr/sbin/nginx\n"));
            image.text().text.contains("ExecStartPre=+")
        };
        let (user, key) = ("User=www-data", "PrivateDevices=yes");
        assert!(!is_before("+", user) && !is_before("+", key), "it starts as root with all rights");
        assert!(!is_before("!", user), "it starts as root all the same");
        assert!(is_before("!", key), "only the user is another");
        assert!(is_before("!!", user) && is_before("!!", key), "as long as the kernel knows ambient capabilities");
    }

    #[test]
    fn a_later_drop_in_that_wins_is_said() {
        let image = Image::new(UNIT);
        let folder = image.root.path().join("etc/systemd/system/nginx.service.d");
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join("zzz.conf"), "[Service]\nExecStart=\nExecStart=/bin/other\n").expect("written");
        assert!(image.text().notes[0].contains("zzz.conf is read after zz-fief.conf"), "{:?}", image.text().notes);
    }

    #[test]
    fn what_is_written_into_an_image_stays_in_it() {
        let image = Image::new(UNIT);
        let outside = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(outside.path(), image.root.path().join("etc")).expect("linked");
        image.drop_in().write(&image.text().text).expect("written");
        assert_eq!(fs::read_dir(outside.path()).expect("there").count(), 0);
        let inside = image.root.path().join(outside.path().strip_prefix("/").expect("absolute"));
        assert!(inside.join("systemd/system/nginx.service.d").join(NAME).exists());
    }

    #[test]
    fn a_link_in_an_image_where_the_text_is_written_aside_is_not_followed() {
        let image = Image::new(UNIT);
        let theirs = tempfile::NamedTempFile::new().expect("a file");
        fs::write(theirs.path(), "theirs").expect("written");
        let drop_in = image.drop_in();
        fs::create_dir_all(drop_in.folder()).expect("made");
        std::os::unix::fs::symlink(theirs.path(), drop_in.aside()).expect("linked");
        let text = image.text().text;
        assert_eq!(drop_in.write(&text).expect("written"), Change::Made);
        assert_eq!(fs::read_to_string(theirs.path()).expect("there"), "theirs");
        assert!(fs::symlink_metadata(drop_in.path()).expect("there").is_file(), "no link either");
        assert_eq!(fs::read_to_string(drop_in.path()).expect("there"), text);
    }

    #[test]
    fn undoing_removes_what_a_killed_one_left() {
        let image = Image::new(UNIT);
        let drop_in = image.drop_in();
        fs::create_dir_all(drop_in.folder()).expect("made");
        fs::write(drop_in.aside(), "half").expect("written");
        assert_eq!(drop_in.remove().expect("away"), Change::Nothing);
        assert!(!drop_in.folder().exists());
    }

    #[test]
    fn writing_twice_is_writing_once_and_undoing_leaves_nothing() {
        let image = Image::new(UNIT);
        let (drop_in, first) = (image.drop_in(), image.text());
        assert_eq!(drop_in.write(&first.text).expect("written"), Change::Made);
        let second = image.text();
        assert_eq!(second, first, "what is ours is not read as the unit's own");
        assert_eq!(drop_in.write(&second.text).expect("written"), Change::Nothing);
        assert_eq!(drop_in.write(&format!("{MARK} before")).expect("written"), Change::Replaced);
        assert_eq!(drop_in.remove().expect("removed"), Change::Removed);
        assert!(!drop_in.folder().exists());
        assert_eq!(drop_in.remove().expect("away"), Change::Nothing);
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let image = Image::new(UNIT);
        let drop_in = image.drop_in();
        fs::create_dir_all(drop_in.folder()).expect("made");
        let theirs = "[Service]\nNice=5\n";
        fs::write(drop_in.path(), theirs).expect("written");
        assert_eq!(drop_in.write(&image.text().text).map_err(|e| e.kind()), Err(ErrorKind::Exists));
        assert_eq!(drop_in.remove().map_err(|e| e.kind()), Err(ErrorKind::Exists));
        assert_eq!(fs::read_to_string(drop_in.path()).expect("there"), theirs);
        let other = drop_in.folder().join("theirs.conf");
        fs::write(&other, theirs).expect("written");
        fs::remove_file(drop_in.path()).expect("removed");
        drop_in.write(&image.text().text).expect("written");
        drop_in.remove().expect("removed");
        assert!(other.exists());
    }

    #[test]
    fn what_starts_no_server_or_starts_fief_is_refused() {
        let options = DropInOptions { fief: "/usr/bin/fief".into(), words: Vec::new() };
        for unit in ["[Service]\nType=oneshot\n", "[Service]\nExecStart=/usr/bin/fief run p.toml -- nginx\n"] {
            assert!(Image::new(unit).drop_in().text(&options).is_err(), "{unit}");
        }
        for name in ["", "../x", "-x", "nginx.socket", "*", "ngin?", "[n]ginx", "a b", "nginx;reboot", "ü"] {
            assert!(DropIn::of(name, None).is_err(), "{name}");
        }
        assert_eq!(DropIn::of("org.example.web", None).expect("a name").unit(), "org.example.web.service");
        let instance = "web@a:b_c\\x2dd-1.service";
        assert_eq!(DropIn::of(instance, None).expect("a name").unit(), instance);
    }
}
