// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Homes that a new policy no longer has: which managed cgroups lose their container by it, and who gets another one.
//!
//! Who pays for a unit is nobody's to guess. What is written down is the drop-in of `fief unit`: the container that it names, or
//! where it names none, the one that the listeners of the new policy give the service at its next start. A unit whose drop-in leads
//! to a container of the new policy is moved there by `apply`. For any other one `apply` refuses the policy before it changes
//! anything.
//! Limits: a cgroup that Fief made for a server that has ended is a remain, and hinders no policy, whoever is left in it. What the
//! server's user starts there can stay for ever, and keeps no operator from applying.

use std::path::{Path, PathBuf};

use fief_bpf::abi;
use fief_bpf::table::{Row, Table};
use fief_bpf::{Error, ErrorKind, Result};
use fief_policy::Policy;

use crate::bind::ManageOptions;
use crate::children::ROOT;
use crate::exec::ExecOptions;
use crate::renamed::There;
use crate::service::DropIn;
use crate::tree::Tree;
use crate::{Fief, cgroup, shell};

/// A managed cgroup whose container a policy does not name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostHome {
    /// Its folder.
    pub cgroup: PathBuf,
    /// Path of the container that it is at home in.
    pub container: String,
    /// Where the policy and its drop-in lead it.
    pub home: NewHome,
}

/// Where a policy leads a managed cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewHome {
    /// `apply` moves it.
    Known {
        /// Path of the container.
        container: String,
        /// Its threads take the container of the socket they work on.
        follow: bool,
    },
    /// Nobody knows, so `apply` refuses.
    Unknown {
        /// Why its drop-in leads nowhere; `None`: it has none.
        why: Option<String>,
        /// A command that gives it a container that is in force and that the policy keeps; `None`: it keeps none.
        command: Option<String>,
    },
}

impl LostHome {
    /// Where `apply` moves it.
    pub fn known(&self) -> Option<&str> {
        match &self.home {
            NewHome::Known { container, .. } => Some(container),
            NewHome::Unknown { .. } => None,
        }
    }

    /// It, and what gives it a home, in one line.
    pub fn told(&self) -> String {
        let Self { cgroup, container, home } = self;
        let folder = shell::word(cgroup);
        match home {
            NewHome::Known { container: new, .. } => {
                format!("{folder} goes from {container} to {new}, as its drop-in says")
            }
            NewHome::Unknown { why, command } => {
                let why = why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
                let none = || {
                    let then = manage_command("NEW", false, cgroup);
                    format!(
                        "no container of now stays for it; first `fief apply --let-go={folder} FILE`, then `{then}`"
                    )
                };
                let help = command.as_ref().map_or_else(none, |command| format!("`{command}`"));
                format!("{folder} is at home in {container}{why}: {help}")
            }
        }
    }
}

/// Which units may lose their container: they stay in the old one, and nobody's account has what they use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LetGo {
    #[default]
    None,
    /// Whichever they are.
    All,
    /// Those with these names: of their folders, or the last parts of them, also without `.service`.
    Units(Vec<String>),
}

impl LetGo {
    fn has(&self, cgroup: &Path) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Units(units) => {
                let is_it = |unit: &String| cgroup.ends_with(unit) || cgroup.ends_with(format!("{unit}.service"));
                units.iter().any(is_it)
            }
        }
    }
}

/// Errors: [`ErrorKind::Exists`] with the units that a policy would leave without a home, but those to let go, and what helps.
pub fn refuse_lost(lost: &[LostHome], let_go: &LetGo) -> Result<()> {
    let hinders = |lost: &&LostHome| lost.known().is_none() && !let_go.has(&lost.cgroup);
    let lines: Vec<_> = lost.iter().filter(hinders).map(|lost| format!("\n  {}", lost.told())).collect();
    let units = match lines.len() {
        0 => return Ok(()),
        1 => "of a managed unit".to_owned(),
        count => format!("of {count} managed units"),
    };
    let what = format!(
        "the policy no longer has the container {units}, so nothing is changed; give each one that stays and apply again, write \
         was = \"OLD/PATH\" in the policy where a container was only renamed, or let them go by `fief apply --let-go FILE` (one \
         of them: --let-go=UNIT), and nobody's account has what they use:{}",
        lines.concat()
    );
    Err(Error::new(ErrorKind::Exists, what))
}

impl Fief {
    /// The managed cgroups whose home the policy does not have. Nothing is changed.
    pub(crate) fn lost_homes(&self, policy: &Policy) -> Result<Vec<LostHome>> {
        let units = self.living_units()?;
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let table = Table::open(self.pins())?;
        // of a large table only what is needed is read, as long as every home is named
        let is_named = |home: &abi::fief_ref| match table.row(home.id).filter(|row| row.container == *home) {
            Some(row) if is_of_policy(&row) => policy.container(&Tree::above(&table, row).path(&row)).is_some(),
            _ => true,
        };
        if units.iter().all(|(_, unit)| is_named(&unit.home)) {
            return Ok(Vec::new());
        }
        let tree = Tree::read(&table);
        let there = There::of(policy, &tree);
        let own = cgroup::own(self.pins().scope())?;
        let has_ended = |folder: &Path| cgroup::processes(folder).is_empty() || self.servers_have_ended(folder);
        let is_remain = |folder: &Path| folder.starts_with(&own) && has_ended(folder);
        let mut lost = Vec::new();
        for (folder, unit) in units.into_iter().filter(|(folder, _)| !is_remain(folder)) {
            let Some(row) = tree.row(unit.home).filter(|row| is_of_policy(row) && !there.keeps(row)) else { continue };
            let follows = unit.task_flags & abi::FIEF_TASK_FOLLOW != 0;
            lost.push(lost_home(policy, &Now { tree: &tree, there: &there }, row, folder, follows));
        }
        lost.sort_by(|one, other| one.cgroup.cmp(&other.cgroup));
        Ok(lost)
    }

    /// Moves those that the policy in force has a home for, and what the operator should know. The state is locked.
    pub(crate) fn move_homes(&self, lost: &[LostHome]) -> Vec<String> {
        let moved = |lost: &LostHome| {
            let NewHome::Known { container, follow } = &lost.home else { return None };
            let options = ManageOptions { container: Some(container.clone()), follow: *follow };
            let (folder, old) = (shell::word(&lost.cgroup), &lost.container);
            match self.manage_as(lost.cgroup.clone(), "", &options) {
                Ok(managed) => {
                    let mut notes = vec![format!(
                        "{folder} is at home in {container} now and no longer in {old}, as its drop-in says"
                    )];
                    notes.extend(managed.notes);
                    Some(notes)
                }
                // it ended meanwhile
                Err(_) if cgroup::id(&lost.cgroup).is_err() => None,
                // the policy is in force, so this is told and stops nothing
                Err(error) => {
                    let command = manage_command(container, *follow, &lost.cgroup);
                    Some(vec![format!("{folder} stays in {old}: {error}; `{command}`")])
                }
            }
        };
        lost.iter().filter_map(moved).flatten().collect()
    }
}

/// To be pasted.
fn manage_command(container: &str, follow: bool, folder: &Path) -> String {
    let follow = if follow { " --follow" } else { "" };
    format!("fief manage --container {}{follow} {}", shell::word(container), shell::word(folder))
}

fn is_of_policy(row: &Row) -> bool {
    row.record.flags & abi::FIEF_CONTAINER_POLICY != 0 && row.record.state == abi::FIEF_ALIVE
}

/// The containers in force, and those of them that the policy goes on with.
struct Now<'a> {
    tree: &'a Tree,
    there: &'a There,
}

impl Now<'_> {
    /// A container that stays, to be named in a command: the nearest above, else the most alike.
    fn stays(&self, row: &Row) -> Option<String> {
        let Self { tree, there } = self;
        let heir = tree.row(tree.nearest_above(row, |row| there.keeps(row))).filter(|row| there.keeps(row));
        let kept = || tree.of_policy().into_iter().filter(|row| there.keeps(row)).map(|row| tree.path(row));
        heir.map(|row| tree.path(row)).or_else(|| candidate(&tree.path(row), &kept().collect::<Vec<_>>()))
    }
}

/// The most alike; if none is, a topmost one.
fn candidate(lost: &str, kept: &[String]) -> Option<String> {
    let alike = fief_policy::nearest_path(lost, kept.iter().map(String::as_str)).map(str::to_owned);
    alike.or_else(|| kept.iter().min_by_key(|path| (path.matches('/').count(), path.as_str())).cloned())
}

fn lost_home(policy: &Policy, now: &Now<'_>, row: &Row, folder: PathBuf, follows: bool) -> LostHome {
    let stays = || now.stays(row);
    let home = match DropIn::of_cgroup(&folder) {
        None => {
            let command = stays().map(|stays| manage_command(&stays, follows, &folder));
            NewHome::Unknown { why: None, command }
        }
        Some(drop_in) => match drop_in.exec_options().and_then(|options| said_home(policy, &options)) {
            Ok((container, follow)) => NewHome::Known { container, follow },
            Err(error) => NewHome::Unknown {
                why: Some(format!("by {}: {error}", drop_in.path().display())),
                command: stays().map(|stays| {
                    format!("fief unit --container {} {}", shell::word(stays), shell::word(drop_in.unit()))
                }),
            },
        },
    };
    LostHome { cgroup: folder, container: now.tree.path(row), home }
}

/// The home of a service that `fief exec` starts with these options under the policy, and whether its threads follow.
fn said_home(policy: &Policy, options: &ExecOptions) -> Result<(String, bool)> {
    let start = options.start(policy, Path::new(""))?;
    match start.home {
        Some(home) if policy.container(&home).is_none() => {
            Err(Error::new(ErrorKind::NotFound, format!("the policy has no container {home}")))
        }
        home => Ok((home.unwrap_or_else(|| ROOT.to_owned()), start.follow)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(containers: &[&str], listener: &str) -> Policy {
        let containers: String = containers.iter().map(|path| format!("[container.\"{path}\"]\n")).collect();
        let text = format!("version = 1\n{containers}{listener}");
        fief_policy::parse(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"))
    }

    const WEB: &str = "[listener.web]\naddress = \"0.0.0.0:80\"\n\
        [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"store/gold\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"store/rest\"\n";

    fn said(policy: &Policy, container: Option<&str>, no_follow: bool) -> std::result::Result<(String, bool), String> {
        let options = ExecOptions { container: container.map(str::to_owned), no_follow, ..ExecOptions::default() };
        said_home(policy, &options).map_err(|error| error.to_string())
    }

    #[test]
    fn a_drop_in_leads_to_the_container_that_it_names_or_to_that_of_its_listeners() {
        let new = policy(&["store", "store/gold", "store/rest"], WEB);
        assert_eq!(said(&new, Some("store"), false), Ok(("store".into(), true)));
        assert_eq!(said(&new, Some("store/gold"), true), Ok(("store/gold".into(), false)));
        assert_eq!(said(&new, None, false), Ok(("store".into(), true)), "above the classes");
        assert_eq!(said(&new, Some("root"), false), Ok(("root".into(), true)));
        assert_eq!(said(&new, Some("shop"), false), Err("the policy has no container shop".into()));
        let copies =
            policy(&["store", "store/gold", "store/rest"], &WEB.replacen('\n', "\ncopies = \"per-class\"\n", 1));
        assert!(said(&copies, None, false).is_err_and(|error| error.contains("copies")));
    }

    fn lost(home: NewHome) -> LostHome {
        LostHome { cgroup: "/sys/fs/cgroup/web".into(), container: "shop/gold".into(), home }
    }

    #[test]
    fn who_has_a_home_to_go_to_hinders_no_policy() {
        assert!(refuse_lost(&[], &LetGo::None).is_ok());
        let known = lost(NewHome::Known { container: "store".into(), follow: true });
        assert_eq!(known.told(), "/sys/fs/cgroup/web goes from shop/gold to store, as its drop-in says");
        assert!(refuse_lost(std::slice::from_ref(&known), &LetGo::None).is_ok());
        let unknown = lost(NewHome::Unknown { why: None, command: Some("fief manage --container a b".into()) });
        let error = refuse_lost(&[known, unknown], &LetGo::None).expect_err("one has none");
        assert_eq!(error.kind(), ErrorKind::Exists);
        let told = error.to_string();
        assert!(
            told.starts_with("the policy no longer has the container of a managed unit, so nothing is changed; "),
            "{told}"
        );
        for help in ["was = \"OLD/PATH\"", "`fief apply --let-go FILE`"] {
            assert!(told.contains(help), "{told}");
        }
        assert!(
            told.ends_with(":\n  /sys/fs/cgroup/web is at home in shop/gold: `fief manage --container a b`"),
            "{told}"
        );
    }

    #[test]
    fn each_unit_comes_with_the_command_that_gives_it_a_home() {
        let none = lost(NewHome::Unknown { why: Some("by /etc/x: it is wrong".into()), command: None });
        assert_eq!(
            none.told(),
            "/sys/fs/cgroup/web is at home in shop/gold (by /etc/x: it is wrong): no container of now stays for it; first \
             `fief apply --let-go=/sys/fs/cgroup/web FILE`, then `fief manage --container NEW /sys/fs/cgroup/web`"
        );
        let both = refuse_lost(&[none.clone(), none], &LetGo::None).expect_err("refused").to_string();
        assert!(both.contains("of 2 managed units") && both.matches("\n  /sys").count() == 2, "{both}");
    }

    #[test]
    fn the_name_of_a_folder_does_nothing_in_a_command_that_is_pasted() {
        let folder = Path::new("/sys/fs/cgroup/x;id>y");
        let quoted = "'/sys/fs/cgroup/x;id>y'";
        assert_eq!(manage_command("a&b", true, folder), format!("fief manage --container 'a&b' --follow {quoted}"));
        let none = NewHome::Unknown { why: None, command: None };
        let told = LostHome { cgroup: folder.into(), ..lost(none.clone()) }.told();
        assert!(told.starts_with(&format!("{quoted} is at home in ")), "{told}");
        for command in
            [format!("`fief apply --let-go={quoted} FILE`"), format!("`fief manage --container NEW {quoted}`")]
        {
            assert!(told.contains(&command), "{told}");
        }
        let escape = LostHome { cgroup: "/sys/fs/cgroup/x\u{1b}[2J".into(), ..lost(none) }.told();
        assert!(escape.starts_with("$'/sys/fs/cgroup/x\\x1b[2J' is at home in "), "{escape}");
    }

    #[test]
    fn one_unit_is_let_go_and_the_others_are_not() {
        let unknown = |folder: &str| LostHome {
            cgroup: folder.into(),
            ..lost(NewHome::Unknown { why: None, command: Some("fief manage --container a b".into()) })
        };
        let both = ["web", "api"].map(|name| unknown(&format!("/sys/fs/cgroup/system.slice/{name}.service")));
        assert!(refuse_lost(&both, &LetGo::All).is_ok());
        let units = |names: &[&str]| LetGo::Units(names.iter().map(|name| (*name).to_owned()).collect());
        for one in ["web", "web.service", "system.slice/web.service", "/sys/fs/cgroup/system.slice/web.service"] {
            let told = refuse_lost(&both, &units(&[one])).expect_err("api is not").to_string();
            assert!(
                told.contains("of a managed unit") && told.contains("api.service") && !told.contains("web"),
                "{told}"
            );
        }
        for none in ["eb", "eb.service", "/web.service", "system.slice", "*"] {
            let told = refuse_lost(&both, &units(&[none])).expect_err("neither is").to_string();
            assert!(told.contains("of 2 managed units"), "{none}: {told}");
        }
        assert!(refuse_lost(&both, &units(&["api", "web"])).is_ok());
    }

    #[test]
    fn the_container_to_name_is_the_most_alike_or_a_topmost() {
        let kept = ["b/gold", "b", "a"].map(str::to_owned);
        assert_eq!(candidate("shop/gold", &kept).as_deref(), Some("b/gold"));
        assert_eq!(candidate("shop/silver", &kept).as_deref(), Some("a"));
        assert_eq!(candidate("shop/silver", &[]), None);
    }
}
