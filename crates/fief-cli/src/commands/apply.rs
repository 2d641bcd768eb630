// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief apply`: puts a policy in force, in place of the one before.

mod difference;

use serde::Serialize;

use crate::brief;
use crate::cli::Apply;
use crate::commands::status::Object;
use crate::failure::Result;
use crate::output::{Output, notes, printable};
use crate::policy_file;
use fief_control::{Applied, ApplyOptions, Fief, Status};

pub fn run(args: &Apply, output: &mut Output) -> Result<()> {
    let file = policy_file::load(&args.file)?;
    let fief = Fief::from_env()?;
    if args.dry_run {
        return difference::run(args, &fief, &file.policy, output);
    }
    if args.unless_in_force && fief.comes_in_force()? {
        return left(args, output);
    }
    let Apply { containers, user_quota, here, .. } = *args;
    let options = ApplyOptions { containers, user_quota, here, let_go: args.let_go(), file: file.path };
    // what is in force is in force, whether its status can be read or not
    let (applied, status) = fief.apply_and_look(&file.policy, &file.text, &options)?;
    let name = policy_file::name(&args.file);
    if args.json {
        return output.json(&Record::of(&name, &applied, status.ok().as_ref()));
    }
    output.text(report(&name, &applied))?;
    match status {
        Ok(status) => brief::lines(&status).iter().try_for_each(|line| output.line(line)),
        Err(error) => output.line(format!("problem: cannot tell whether it works: {}", printable(&error.to_string()))),
    }
}

/// What is in force stays.
fn left(args: &Apply, output: &mut Output) -> Result<()> {
    #[derive(Serialize)]
    struct Left<'a> {
        file: &'a str,
        applied: bool,
    }
    let file = policy_file::name(&args.file);
    match args.json {
        true => output.json(&Left { file: &file, applied: false }),
        false => output.line(format!(
            "{} was not applied: a policy is in force already; `fief apply {}` replaces it",
            printable(&file),
            printable(&file)
        )),
    }
}

#[derive(Serialize)]
struct Record<'a> {
    file: &'a str,
    made: &'a [String],
    kept: &'a [String],
    renamed: Vec<Renamed<'a>>,
    released: &'a [String],
    notes: &'a [String],
    status: Option<Object<'a>>,
}

impl<'a> Record<'a> {
    fn of(file: &'a str, applied: &'a Applied, status: Option<&'a Status>) -> Self {
        let Applied { made, kept, renamed, released, notes } = applied;
        let renamed = Renamed::of(renamed);
        Self { file, made, kept, renamed, released, notes, status: status.map(Object::of) }
    }
}

/// A container that goes on under another path.
#[derive(Serialize)]
struct Renamed<'a> {
    was: &'a str,
    container: &'a str,
}

impl<'a> Renamed<'a> {
    fn of(renamed: &'a [(String, String)]) -> Vec<Self> {
        renamed.iter().map(|(was, container)| Self { was, container }).collect()
    }

    /// `shop -> store`
    fn words(renamed: &[Self]) -> String {
        renamed.iter().map(|Self { was, container }| format!("{was} -> {container}")).collect::<Vec<_>>().join(", ")
    }
}

fn report(name: &str, applied: &Applied) -> String {
    let mut page = format!("{} is in force\n", printable(name));
    let lists = [("made", &applied.made), ("kept", &applied.kept), ("released", &applied.released)];
    for (what, paths) in lists.into_iter().filter(|(_, paths)| !paths.is_empty()) {
        page.push_str(&format!("{what}: {}\n", printable(&paths.join(", "))));
    }
    if !applied.renamed.is_empty() {
        page.push_str(&format!("renamed: {}\n", printable(&Renamed::words(&Renamed::of(&applied.renamed)))));
    }
    page.push_str(&notes(&applied.notes));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_is_reported() {
        let applied = Applied {
            made: vec!["shop".into(), "shop/gold".into()],
            notes: vec!["conntrack is off".into()],
            ..Applied::default()
        };
        let expected = "p.toml is in force\nmade: shop, shop/gold\nnote: conntrack is off\n";
        assert_eq!(report("p.toml", &applied), expected);
    }
}
