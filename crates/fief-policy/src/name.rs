// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of containers and listeners.

use crate::quantity::Refused;

/// Bytes of one component: the kernel's record has room for 32 with a final NUL.
pub(crate) const LONGEST_NAME: usize = 31;
/// Levels below the root.
pub(crate) const DEEPEST: usize = 16;

/// The containers that are always there stand at the top of the tree, and so does `user/<uid>`.
const RESERVED: [&str; 7] = ["root", "system", "idle", "steal", "unattributed", "retired", "user"];

pub(crate) const EXPECTED_PATH: &str =
    "up to 16 names joined by '/', each of 1 to 31 bytes, without spaces and control characters";
pub(crate) const EXPECTED_NAME: &str = "a name of 1 to 31 bytes, without '/', spaces and control characters";

/// Whether a path is this container's, or that of one below it.
pub fn is_within(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Is it a path for a container of a policy?
pub(crate) fn check_path(path: &str) -> Result<(), Refused> {
    let tidy = || path.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/");
    for name in path.split('/') {
        if name.is_empty() && !tidy().is_empty() {
            return refused(format!("\"{path}\" has an empty name in it"), format!("write \"{}\"", tidy()));
        }
        check_name(name)?;
    }
    let depth = path.split('/').count();
    if depth > DEEPEST {
        return refused(format!("\"{path}\" is {depth} levels deep"), format!("write at most {DEEPEST} names"));
    }
    let top = path.split('/').next().unwrap_or(path);
    if RESERVED.contains(&top) {
        let remedy = format!("choose another name, for example \"my-{path}\"");
        return refused(format!("`{top}` is a container of Fief's own"), remedy);
    }
    Ok(())
}

/// Is it a name for a listener?
pub(crate) fn check_name(name: &str) -> Result<(), Refused> {
    if name.is_empty() {
        return refused("the name is empty", "write a name, for example \"web\"");
    }
    if name.contains('/') {
        return refused(format!("\"{name}\" has a '/' in it"), format!("write \"{}\"", name.replace('/', "-")));
    }
    if name == "." || name == ".." {
        return refused(format!("\"{name}\" is not a name"), "write a name with letters or digits");
    }
    if let Some(character) = name.chars().find(|character| character.is_control() || character.is_whitespace()) {
        let cleaned: String = name
            .chars()
            .map(|character| if character.is_control() || character.is_whitespace() { '-' } else { character })
            .collect();
        return refused(
            format!("the name \"{}\" has {character:?} in it", name.escape_debug()),
            format!("write \"{cleaned}\""),
        );
    }
    if name.len() > LONGEST_NAME {
        let short = shortened(name);
        return refused(
            format!("the name \"{name}\" is {} bytes long", name.len()),
            format!("shorten it, for example to \"{short}\""),
        );
    }
    Ok(())
}

fn refused(message: impl Into<String>, remedy: impl Into<String>) -> Result<(), Refused> {
    Err(Refused { message: message.into(), remedy: remedy.into() })
}

fn shortened(name: &str) -> &str {
    let ends = name.char_indices().map(|(at, character)| at + character.len_utf8());
    &name[..ends.take_while(|&end| end <= LONGEST_NAME).last().unwrap_or(0)]
}
