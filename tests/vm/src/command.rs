// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `fief`, as its users call it, and the objects it prints.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::report::text;

/// A policy whose one container has all of the machine.
pub const WHOLE: &str = "version = 1\nschedule = \"auto\"\n[container.site]\ncpu.share = \"100%\"\n";

/// Runs `fief` to its end: what it printed, or what it complained about.
pub fn fief(words: &[&str]) -> Result<String, String> {
    finish(Command::new("fief").args(words))
}

/// Runs a program to its end: what it printed, or what it complained about.
pub fn finish(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let words = words.join(" ".as_ref());
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}; {said}{complaint}", words.to_string_lossy(), output.status))
}

/// Takes down what is in force, and runs a part of this program under a policy: what it has to say of itself.
pub fn run_part(policy: &str, part: &str) -> Result<String, String> {
    fief(&["down"])?;
    let program = std::env::current_exe().map_err(text)?;
    let said = finish(Command::new("fief").args(["run", write_policy(policy)?, "--"]).arg(program).arg(part))?;
    Ok(said.trim().to_owned())
}

/// Puts a policy where `fief` can be told of it.
pub fn write_policy(text_of_policy: &str) -> Result<&'static str, String> {
    let path = "/tmp/policy.toml";
    std::fs::write(path, text_of_policy).map_err(text)?;
    Ok(path)
}

/// Runs `fief` with `--json`: one object a line.
pub fn objects(words: &[&str]) -> Result<Vec<Value>, String> {
    let said = fief(&[words, &["--json"]].concat())?;
    said.lines().map(|line| serde_json::from_str(line).map_err(|e| format!("{e} in {line}"))).collect()
}

/// A number of an object.
pub fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("{name} is a number in {object}"))
}

/// What all containers have used: by path, the object.
pub fn usage() -> Result<BTreeMap<String, Value>, String> {
    let all = objects(&["usage"])?;
    Ok(all.into_iter().map(|one| (one["container"].as_str().unwrap_or_default().to_owned(), one)).collect())
}

/// Time of a container's threads.
pub fn thread_ns(path: &str) -> Result<u64, String> {
    Ok(usage()?.get(path).map_or(0, |one| number(one, "thread_ns")))
}
